#!/usr/bin/env python3
"""How many silent training errors `nsadiag prove` tells, and how many healthy jobs it accuses.

    python benchmarks/verdicts/proved/proved.py                             # the programs of silent_programs/
    python benchmarks/verdicts/proved/proved.py --set repro                 # repro/silently_wrong and repro/healthy
    python benchmarks/verdicts/proved/proved.py --set benchmarks/verdicts/proved/open.tar.xz
    python benchmarks/verdicts/proved/proved.py --only ddp/no_set_epoch     # programs in whose name this stands
    python benchmarks/verdicts/proved/proved.py --rows rows.jsonl           # adds to the rows of earlier runs
    python benchmarks/verdicts/proved/proved.py --cold                      # as the command starts them: with the time it takes

Runs are forked from this process and are real ones (gloo), unless `--cold`. An archive has a folder a program: train.py,
and truth.json with `world_size`, `expected_outcome` (`wrong` or `healthy`), `arguments` and `prove` (options of the command).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPO), str(REPO / "benchmarks/verdicts")]

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torch.distributed  # noqa: E402
import torch.distributed.fsdp  # noqa: E402
import torch.distributed.tensor.parallel  # noqa: E402
import torch.nn.parallel  # noqa: E402
from shared import Row, answer, collected, environment, percent  # noqa: E402
from silent import PROGRAMS, programs  # noqa: E402

from nsadiag.commands.experiments.proof_lines import alone, ranks_of, with_batch  # noqa: E402
from nsadiag.commands.experiments.prove import Proved, ProveOptions, Runner, came_to_the_end  # noqa: E402
from nsadiag.commands.run import RunRequest, RunResult  # noqa: E402
from nsadiag.evidence.documents.files import tail_of  # noqa: E402
from nsadiag.evidence.layout import RunDir, make_private_dir  # noqa: E402
from nsadiag.evidence.rehearsal import PROOF  # noqa: E402
from nsadiag.evidence.rehearsal.proof import Asked  # noqa: E402
from nsadiag.worker import session, startup  # noqa: E402

TIMEOUT_S = 90.0
LAUNCH = re.compile(r"launch: torchrun .*--nproc-per-node[ =](\d+)")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One program, in a folder of its own once it is laid out."""

    name: str
    healthy: bool
    kind: str = ""
    ranks: int = 2
    files: dict[str, bytes] = field(repr=False)
    options: tuple[str, ...] = ()  # of prove
    places: tuple[str, ...] = ()  # lines that a verdict may name
    arguments: tuple[str, ...] = ()


def silent() -> Iterator[Subject]:
    shared = (PROGRAMS / "workload.py").read_bytes()
    for program in programs():
        files = {"train.py": program.source.encode(), "workload.py": shared}
        yield Subject(name=program.name, healthy=program.kind == "healthy", kind=program.kind, files=files)


def repro() -> Iterator[Subject]:
    for folder in ("silently_wrong", "healthy"):
        for path in sorted((REPO / "repro" / folder).glob("*.py")):
            if launch := LAUNCH.search(path.read_text()):
                files = {"train.py": path.read_bytes()}
                yield Subject(name=path.stem, healthy=folder == "healthy", ranks=int(launch[1]), files=files)


def archived(path: Path) -> Iterator[Subject]:
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if member.isfile() and (file := archive.extractfile(member)):
                folder, _, name = member.name.rpartition("/")
                found.setdefault(folder, {})[name] = file.read()
    for folder, files in sorted(found.items()):
        truth = json.loads(files.pop("truth.json"))
        yield Subject(
            name=folder, healthy=truth["expected_outcome"] == "healthy", kind=truth.get("kind", ""), ranks=truth["world_size"], files=files,
            options=tuple(truth.get("prove", ())), arguments=tuple(truth.get("arguments", ())), places=tuple(truth.get("places", ())),
        )  # fmt: skip


class Forked(Runner):
    """Runs forked from this process, which has imported torch: without a launcher or a watch."""

    def __init__(self, request: RunRequest, options: ProveOptions, cwd: Path) -> None:
        super().__init__(request, options)
        self._cwd = cwd

    def launched(self, request: RunRequest, asked: Asked, **_: Any) -> tuple[RunResult, Proved | None]:
        assert request.out is not None
        run, at = RunDir(path=request.out), request.command.index("train.py")
        make_private_dir(run.path)
        ranks = 1 if "1" in request.command[:at] else ranks_of(request.command)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1,
                  PROOF: asked.to_json(), "NSADIAG_RUN_DIR": run.path, "NSADIAG_PROBES": "none"}  # fmt: skip
        place = self._cwd / "job"  # the same for all runs, so that their lines are the same
        shutil.rmtree(place, ignore_errors=True)  # what one run saves no other finds
        shutil.copytree(self._cwd, place, ignore=shutil.ignore_patterns("run", "job"))
        words = request.command[at + 1 :]
        started = [self._fork(place, run, rank, ranks, shared, words) for rank in range(ranks)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
        result = RunResult(directory=run.path, verdict=None, exit_code=0)
        if not any(codes) or came_to_the_end(run.path, asked):
            return result, None
        why = "; ".join(tail_of(run.rank(rank).stderr, 300).strip() for rank in range(ranks))
        return result, Proved(directory=run.path, answer="failed", why=f"{codes}: {why}")

    def _fork(
        self, place: Path, run: RunDir, rank: int, ranks: int, shared: dict[str, Any], words: list[str]
    ) -> int:
        if pid := os.fork():
            return pid
        try:
            os.chdir(place)
            os.environ.update({name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()})  # fmt: skip
            sys.argv, sys.path[:0] = ["train.py", *words], [str(place)]
            torch.set_num_threads(1)
            make_private_dir(run.rank(rank).path)
            for number, log in ((1, run.rank(rank).stdout), (2, run.rank(rank).stderr)):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
            signal.alarm(int(TIMEOUT_S))
            startup.attach_to_warm_process(rank, ranks)
            runpy.run_path("train.py", run_name="__main__")
            session.close()
            sys.stdout.flush()
        except SystemExit as leaving:
            os._exit(leaving.code if isinstance(leaving.code, int) else 0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    def _traced(self, *of: Any) -> tuple[str, str] | None:
        with contextlib.chdir(self._cwd):  # where its sources are
            return super()._traced(*of)

    def judge(self) -> None:
        return


def laid_out(subject: Subject, folder: Path) -> list[str]:
    """The command; its files lie in the folder."""
    make_private_dir(folder)
    for name, text in subject.files.items():
        (folder / name).write_bytes(text)
    return ["torchrun", "--nproc-per-node", str(subject.ranks), "train.py", *subject.arguments]


def forked(subject: Subject, folder: Path) -> Row:
    command = laid_out(subject, folder)
    request = RunRequest(command=command, out=folder / "run")
    option = subject.options[subject.options.index("--batch-option") + 1] if "--batch-option" in subject.options else ""  # fmt: skip
    runner = Forked(request, ProveOptions(batch_option=option), folder)
    try:
        found = runner.proved(with_batch(alone(command), option, subject.ranks))
    except Exception as error:
        return {"answer": "error", "why": repr(error)}
    return {
        "answer": found.answer,
        "why": found.why,
        "document": found.document,
        **named_line(subject, found.document),
    }


def named_line(subject: Subject, document: dict[str, Any]) -> Row:
    """The line of a proof, and whether it is the right one."""
    file, number, _ = (document.get("place") or "::").rsplit(":", 2)
    text = subject.files.get(Path(file).name, b"").decode().splitlines()
    code = text[int(number) - 1].strip() if number.isdigit() and 0 < int(number) <= len(text) else ""
    return {
        "line": code,
        "right": any(code in place or place in code for place in subject.places) if code else False,
    }


def cold(subject: Subject, folder: Path) -> Row:
    command, began = laid_out(subject, folder), time.monotonic()
    line = ["nsadiag", "prove", "--json", "--out", "run", *subject.options, "--", *command]
    done = subprocess.run(
        line, check=False, cwd=folder, env=environment(), capture_output=True, text=True, timeout=900
    )
    took = time.monotonic() - began
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return {"answer": "error", "why": done.stderr[-300:], "seconds": took}
    return {"answer": told["answer"], "why": told["why"], "document": told, "seconds": round(took, 1)}


def measured(options: argparse.Namespace) -> Iterator[Row]:
    subjects = {"silent": silent, "repro": repro}.get(options.set, lambda: archived(Path(options.set)))()
    chosen = [s for s in subjects if not options.only or any(re.search(e, s.name) for e in options.only)]
    with tempfile.TemporaryDirectory(prefix="proved-") as text:
        folder = options.keep or Path(text)
        for subject in chosen:
            place = folder / subject.name
            shutil.rmtree(place, ignore_errors=True)
            row = cold(subject, place) if options.cold else forked(subject, place)
            row = {"name": subject.name, "kind": subject.kind, "healthy": subject.healthy, **row}
            said = f"{'healthy' if subject.healthy else 'faulty'}): {row['answer']}: {row['why']}"
            print(
                f"{subject.name} ({said}\n    {row.get('right')}: {row.get('line')}",
                file=sys.stderr,
                flush=True,
            )
            yield row


def figures(rows: list[Row]) -> dict[str, Any]:
    faulty, healthy = [r for r in rows if not r["healthy"]], [r for r in rows if r["healthy"]]
    comparable = [r for r in rows if r["answer"] in ("same", "differs")]
    seconds = sorted(r["seconds"] for r in rows if "seconds" in r)
    return {
        "faulty": len(faulty),
        "told_pct": percent(r["answer"] == "differs" for r in faulty),
        "told_of_comparable_pct": percent(r["answer"] == "differs" for r in faulty if r in comparable),
        "healthy": len(healthy),
        "accused": [r["name"] for r in healthy if r["answer"] == "differs"],
        "proved_healthy_pct": percent(r["answer"] == "same" for r in healthy),
        "answers": dict(Counter(f"{'healthy' if r['healthy'] else 'faulty'}: {r['answer']}" for r in rows)),
        "seconds_median": seconds[len(seconds) // 2] if seconds else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", default="silent", help="silent, repro, or an archive")
    parser.add_argument(
        "--only", nargs="*", metavar="EXPR", help="programs in whose name one of these is found"
    )
    parser.add_argument("--cold", action="store_true", help="start each as the command does")
    parser.add_argument("--keep", type=Path, help="where to keep programs and run directories")
    parser.add_argument("--rows", type=Path, help="a file of rows: earlier ones count, new ones are added")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    told = figures(collected(options.rows, measured(options)))
    answer(told, (f"{key}: {value}" for key, value in told.items()), as_json=options.json)


if __name__ == "__main__":
    main()
