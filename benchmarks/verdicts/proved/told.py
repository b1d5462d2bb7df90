#!/usr/bin/env python3
"""How many silent errors `run` tells, `prove` on top of it, and `prove --resume`: programs with their truth, faulty and healthy ones.

    python benchmarks/verdicts/proved/told.py benchmarks/verdicts/proved/accepted_*.tar.xz --jobs 8

The archives are as those of proved.py; `places` of a truth are the lines, as they are written, that a verdict may name, and
`prove` has `--resume` where a program goes on from what it saved. Each command starts as a user's does, in a folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPO), str(REPO / "benchmarks/verdicts"), str(Path(__file__).parent)]

from proved import Subject, archived, laid_out, repro, silent  # noqa: E402
from shared import Row, answer, collected, environment, percent  # noqa: E402
from silent import launchers  # noqa: E402

from nsadiag.agent.watching.state import WatchOptions  # noqa: E402
from nsadiag.analysis.verdict import judge_directory  # noqa: E402
from nsadiag.engines.local import WarmLauncher, run_warm  # noqa: E402
from nsadiag.evidence.layout import RunDir  # noqa: E402

WAYS = ("run", "prove", "resume")


def line(way: str, subject: Subject, seconds: int) -> list[str]:
    """The command's own words."""
    if way == "run":
        return ["run", "--force", "--timeout", str(seconds)]
    options = [option for option in subject.options if way == "resume" or option != "--resume"]
    return ["prove", "--force", "--seconds", str(seconds), *options]


def one(subject: Subject, way: str, seconds: int, keep: Path | None) -> Row:
    with tempfile.TemporaryDirectory(prefix="told-") as scratch:
        folder = keep / f"{subject.name}-{way}" if keep else Path(scratch, "job")
        command = laid_out(subject, folder)
        if way == "run":  # others run beside it; a rehearsal has a network of its own
            command.insert(1, "--standalone")
        words = [
            sys.executable,
            "-m",
            "nsadiag",
            *line(way, subject, seconds),
            "--out",
            "kept",
            "--",
            *command,
        ]
        began = time.monotonic()
        started = subprocess.Popen(
            words, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )  # fmt: skip
        used = _ended(started.pid, seconds * 5)
        verdict = _read(folder / "kept/verdict.json")
        proof = _read(folder / "kept/proof.json")
    return _row(subject, way, verdict, proof, began, used)


def warm(subject: Subject, seconds: int, keep: Path | None, launcher: WarmLauncher) -> Row:
    """The same run, of ranks that are forked from a process which has imported torch, as a matrix's are."""
    with tempfile.TemporaryDirectory(prefix="told-") as scratch:
        folder = keep / f"{subject.name}-run" if keep else Path(scratch, "job")
        laid_out(subject, folder)
        argv, options = [str(folder / "train.py"), *subject.arguments], WatchOptions(timeout_s=float(seconds))
        began, run = time.monotonic(), RunDir(path=folder / "kept")
        run_warm(launcher, argv, run, options, world_size=subject.ranks, probes="light", cwd=folder)
        verdict = judge_directory(run.path).to_json()
        return _row(subject, "run", verdict, {}, began, None)


def _row(
    subject: Subject,
    way: str,
    verdict: dict[str, Any],
    proof: dict[str, Any],
    began: float,
    used: float | None,
) -> Row:
    row = {
        "name": subject.name, "way": way, "healthy": subject.healthy, "outcome": verdict.get("outcome"), "answer": proof.get("answer"),
        "told": verdict.get("outcome") == "wrong", "says": str(proof.get("why") or verdict.get("summary"))[:400],
        "seconds": round(time.monotonic() - began, 1), "cpu": used,
    }  # fmt: skip
    if row["told"] and not subject.healthy:
        where = verdict.get("where") or {}
        code = str(where.get("code") or "").strip()
        row["where"] = f"{where.get('line')}: {code}"
        right = any(code in place or place in code for place in subject.places)
        row["line"] = bool(code) and right if subject.places else None
    return row


def _ended(pid: int, limit: float) -> float | None:
    """Waits for the command; the processor time of all that it started. None where it had to be ended."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found, _, used = os.wait4(pid, os.WNOHANG)
        if found:
            return round(used.ru_utime + used.ru_stime, 1)
        time.sleep(0.1)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def measured(options: argparse.Namespace) -> Iterator[Row]:
    known = {"silent": silent, "repro": repro}
    subjects = [
        s for name in options.sets for s in (known[name]() if name in known else archived(Path(name)))
    ]
    chosen = [
        s for s in subjects if not options.only or any(re.search(each, s.name) for each in options.only)
    ]
    with tempfile.TemporaryDirectory() as text, ThreadPoolExecutor(options.jobs) as pool, launchers(options.jobs if options.warm else 0, Path(text)) as free:  # fmt: skip

        def told(subject: Subject, way: str) -> Row:
            if way != "run" or not options.warm:
                return one(subject, way, options.seconds, options.keep)
            launcher = free.get()
            try:
                return warm(subject, options.seconds, options.keep, launcher)
            finally:
                free.put(launcher)

        todo = [
            pool.submit(told, subject, way)
            for way in reversed(options.ways)  # the longest first
            for subject in chosen
            if way != "resume" or "--resume" in subject.options
        ]
        for done in as_completed(todo):
            row = done.result()
            kind = "healthy" if row["healthy"] else "faulty"
            print(f"{row['way']} {row['name']} ({kind}): {row['outcome']} {row['answer']}: {row['says']}", file=sys.stderr, flush=True)  # fmt: skip
            yield row


def figures(rows: list[Row]) -> dict[str, Any]:
    told: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: WAYS.index(row["way"])):
        told.setdefault(row["name"], {})[row["way"]] = row
    faulty = {name: ways for name, ways in told.items() if not next(iter(ways.values()))["healthy"]}
    healthy = {name: ways for name, ways in told.items() if name not in faulty}
    first = {name: next((row for row in ways.values() if row["told"]), None) for name, ways in faulty.items()}
    proofs = sorted(row["seconds"] for row in rows if row["way"] == "prove")
    used = sorted(row["cpu"] for row in rows if row["way"] == "prove" and row["cpu"] is not None)
    return {
        "faulty": len(faulty),
        "healthy": len(healthy),
        **{f"told_{'_'.join(WAYS[: n + 1])}_pct": percent(any(way in ways and ways[way]["told"] for way in WAYS[: n + 1]) for ways in faulty.values()) for n in range(len(WAYS))},
        "line_right_of_told_pct": percent(row["line"] for row in first.values() if row),
        **{f"accused_by_{way}": sorted(name for name, ways in healthy.items() if way in ways and ways[way]["told"]) for way in WAYS},
        "answers": dict(sorted(Counter(f"{r['way']} {'healthy' if r['healthy'] else 'faulty'}: {r['answer'] or r['outcome']}" for r in rows).items())),
        "not_told": sorted(name for name, row in first.items() if row is None),
        "other_line": {name: row["where"] for name, row in first.items() if row and row["line"] is False},
        "prove_seconds_median_and_most": [proofs[len(proofs) // 2], proofs[-1]] if proofs else None,
        "prove_cpu_seconds_median_and_most": [used[len(used) // 2], used[-1]] if used else None,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", help="archives; silent: the programs of silent_programs/; repro")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument(
        "--only", nargs="*", metavar="EXPR", help="programs in whose name one of these is found"
    )
    parser.add_argument("--jobs", type=int, default=1, help="commands at a time")
    parser.add_argument(
        "--warm", action="store_true", help="`run` forks its ranks from a process that has imported torch"
    )
    parser.add_argument("--seconds", type=int, default=120, help="the limit of each run")
    parser.add_argument("--keep", type=Path, help="where to keep programs and run directories")
    parser.add_argument("--rows", type=Path, help="a file of rows: earlier ones count, new ones are added")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    rows = collected(options.rows, measured(options))
    told = figures(rows)
    answer(told, (f"{key}: {value}" for key, value in told.items()), as_json=options.json)


if __name__ == "__main__":
    main()
