#!/usr/bin/env python3
"""`nsadiag fix` on the scripts of repro/ whose ranks part by their code: `python benchmarks/verdicts/fix.py [-k NAME] [--cache FOLDER]`.

In an order drawn by name, so that a part of them is a sample. For each: the answer, the template, the criteria that are not met, the seconds. `--cache` keeps the failed runs, and each trial
by the text that was tried, so that only what is new is run. `--programs`: others, a folder or an archive (see rehearsed/);
with NAME.fix.patch, the author's own repair, the result is compared: losses, calls and files of each rank.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from programs import unpacked  # noqa: E402
from shared import earlier  # noqa: E402

from nsadiag.commands.fix.fix import Fixed, FixRequest, fixed_of  # noqa: E402
from nsadiag.commands.fix.origin import read_origin  # noqa: E402
from nsadiag.commands.fix.rehearsals import BothTrials, Trials, trials_of  # noqa: E402
from nsadiag.commands.fix.warm import PatientLauncher  # noqa: E402
from nsadiag.engines.local import WarmLauncher  # noqa: E402
from nsadiag.errors import NsadiagError  # noqa: E402
from nsadiag.repair.change import Change  # noqa: E402
from nsadiag.repair.judgement import Rehearse  # noqa: E402
from nsadiag.repair.patch import change_of  # noqa: E402
from nsadiag.repair.record import Record  # noqa: E402
from nsadiag.repair.twin import differences  # noqa: E402
from tests.support.promises import promises  # noqa: E402

DIVERGENCES = (
    "model_structure_mismatch", "divergent_module_execution", "collective_args_mismatch", "process_group_mismatch",
    "grad_sync_mismatch", "data_divergent_control_flow", "rank_conditional_collective", "uneven_inputs", "p2p_mismatch",
    "collective_order_mismatch",
)  # fmt: skip
REPAIRED = ("differs", "raised")  # kinds of failures that a rehearsal shows
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A job that fails: its files, and the launcher line within their folder."""

    name: str
    kind: str
    source: Path  # a file, or the folder of several
    launch: tuple[str, ...]
    twin: Path | None = None  # the author's own repair


@dataclass(kw_only=True)
class CachedTrials:
    """Trials whose results are kept by the text that was tried."""

    trials: BothTrials | Trials
    folder: Path
    warm: bool = False
    known: int = 0  # trials that were not run again
    made: Counter[str] = field(default_factory=Counter)

    def rehearse(self, change: Change | None, ranks: int, seed: int) -> Record:
        found: Record = self._kept(
            f"warm-{ranks}-{seed}", change, lambda: self.trials.rehearse(change, ranks, seed)
        )
        return found

    @property
    def cold(self) -> Rehearse | None:
        return self._cold if self.trials.cold and not self.warm else None

    def _cold(self, change: Change | None, ranks: int, seed: int) -> Record:
        assert self.trials.cold
        make = self.trials.cold
        found: Record = self._kept(f"cold-{ranks}-{seed}", change, lambda: make(change, ranks, seed))
        return found

    def launch(self, change: Change, unwanted: threading.Event) -> str:
        """What was ended before its time is not kept."""
        if self.warm:
            return "healthy"
        return str(self._kept("run", change, lambda: self.trials.launch(change, unwanted), unwanted))

    def _kept(
        self, what: str, change: Change | None, make: Any, unwanted: threading.Event | None = None
    ) -> Any:
        text = json.dumps([(f.path, f.after) for f in change.files]) if change else ""
        file = self.folder / f"{what}-{hashlib.sha1(text.encode()).hexdigest()[:16]}.pickle"
        if file.exists():
            result = pickle.loads(file.read_bytes())
            self.known += 1
        else:
            result = make()
            # What ran out of time says how busy the machine was.
            in_time = getattr(result, "answer", "") != "undecided"
            if in_time and not (unwanted and unwanted.is_set()):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(pickle.dumps(result))
        self.made[what] += 1
        return result


def cpu_spent() -> float:
    """Seconds of processors that this process, its descendants and those of them that have ended have used."""
    ticks, parents = {}, {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
                parents[int(directory.name)] = int(fields[1])
                ticks[int(directory.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="only programs with this in their name")
    parser.add_argument("--name", help="only the program of this name")
    parser.add_argument("--cache", type=Path, help="keep runs and trials in this folder")
    parser.add_argument("--out", type=Path, help="append each result to this file as a line of JSON")
    parser.add_argument("--programs", type=Path, help="a folder of programs, in place of repro/")
    parser.add_argument("--budget", type=float, default=900.0, help="seconds for each")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of one trial")
    parser.add_argument(
        "--warm", action="store_true", help="leave out what needs processes of its own: the launch, one seed"
    )
    parser.add_argument("--part", type=int, default=0, help="of --of: for several at once")
    parser.add_argument("--of", type=int, default=1)
    parser.add_argument("--check-only", action="store_true", help="make the failed runs, and no repair")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as room, folder_of(given.programs) as folder:
        cache = (given.cache or Path(room)).resolve()
        rows: list[dict[str, Any]] = []
        launcher = PatientLauncher(Path(room) / "warm.log", preload=(), env={})
        done = {row["name"] for row in earlier(given.out)}
        try:
            for program in sorted(programs(folder), key=lambda each: drawn(each.name)):
                if (
                    given.k not in program.name
                    or program.name != (given.name or program.name)
                    or program.name in done
                    or drawn(program.name) % given.of != given.part
                ):
                    continue
                rows.append(row := measured(program, cache / program.name, given, launcher))
                print(json.dumps(row), flush=True)
                if given.out:
                    with given.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
        finally:
            launcher.close()
    print(json.dumps(summary(earlier(given.out) if given.out else rows), indent=1))


@contextmanager
def folder_of(given: Path | None) -> Iterator[Path | None]:
    if given is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield unpacked(given, Path(scratch)).resolve()


def drawn(name: str) -> int:
    """A number by which programs are gone through: whatever part of them is done is a sample of all."""
    return int(hashlib.sha1(name.encode()).hexdigest()[:8], 16)


def programs(folder: Path | None) -> Iterator[Program]:
    """Of repro/ those that promise another action than a change of the code are left out."""
    if folder is not None:
        for about in sorted(folder.glob("*.json")):
            known = json.loads(about.read_text())
            if known["kind"] not in REPAIRED or not all(
                map(importlib.util.find_spec, known.get("needs") or ())
            ):
                continue
            source, twin = about.with_suffix(""), about.with_suffix(".fix.patch")
            yield Program(
                name=about.stem,
                kind=known.get("class") or known["kind"],
                source=source if source.is_dir() else about.with_suffix(".py"),
                launch=tuple(known["launch"]),
                twin=twin if twin.exists() else None,
            )
        return
    for promise in promises():
        if promise.action == "fix code" and promise.classes[0] in DIVERGENCES and not promise.needs:
            launch = (*promise.launch, promise.script.name)
            yield Program(name=promise.name, kind=promise.classes[0], source=promise.script, launch=launch)


def measured(
    program: Program, folder: Path, given: argparse.Namespace, launcher: WarmLauncher
) -> dict[str, object]:
    """The row of one program."""
    job = folder / "job"
    if not (folder / "run" / "verdict.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        job.mkdir(parents=True)
        if program.source.is_dir():
            shutil.copytree(program.source, job / program.source.name)
        else:
            shutil.copy(program.source, job)
        line = [
            sys.executable,
            "-m",
            "nsadiag",
            "check",
            "--out",
            str(folder / "run"),
            "--seconds",
            f"{given.seconds:g}",
        ]
        subprocess.run(
            [*line, "--", *program.launch], cwd=job, env=ENVIRONMENT, capture_output=True, check=False
        )  # fmt: skip
    row: dict[str, object] = {"name": program.name, "kind": program.kind}
    try:
        origin = read_origin(folder / "run")
    except NsadiagError as error:
        return {**row, "answer": "refused", "why": error.message}
    if given.check_only:
        return {**row, "class": origin.verdict.cls, "sites": origin.sites[:6]}
    os.environ.update(ENVIRONMENT)
    with trials_of(origin.job, given.seconds, launcher) as made:
        trials = CachedTrials(trials=made, folder=folder / "trials", warm=given.warm)
        request = FixRequest(path=folder / "run", seconds=given.seconds, budget_s=given.budget)
        row["class"] = origin.verdict.cls
        spent = cpu_spent()
        try:
            result = fixed_of(request, origin, trials)
            row["cpu_s"] = round(cpu_spent() - spent, 1)
            return {**row, **judged(program, result, trials)}
        except NsadiagError as error:
            return {**row, "answer": "refused", "why": error.message}


def judged(program: Program, result: Fixed, trials: CachedTrials) -> dict[str, object]:
    """The outcome, and why no other candidate was it."""
    best = result.best
    row: dict[str, object] = {
        "answer": best.judgement.level if best else "nothing",
        "template": best.candidate.template if best else None,
        "what": best.candidate.what if best else None,
        "cost": best.judgement.cost if best else "",
        "unmet": [r.criterion for r in best.judgement.rows if not r.met] if best else [],
        "tried": [
            f"{t.candidate.what}: {t.judgement.reason or t.judgement.level}"
            for t in result.tried
            if t is not best
        ],
        "untried": len(result.untried),
        "seconds": round(result.seconds, 1),
        "trials": sum(trials.made.values()),
        "from_cache": trials.known,
    }
    if best and program.twin is not None:
        row["twin"] = against(program.twin, best.candidate.change, result.origin, trials)
    return row


def against(twin: Path, change: Change, origin: Any, trials: CachedTrials) -> list[str]:
    """Wherein the result differs from the author's own repair, on ranks that both come to their end."""
    own = change_of(origin.job, twin.read_text())
    ranks = origin.job.ranks
    return list(differences(trials.rehearse(own, ranks, 0), trials.rehearse(change, ranks, 0)))


def summary(rows: list[dict[str, Any]]) -> dict[str, object]:
    answers = Counter(str(row.get("answer")) for row in rows)
    fixed = [row for row in rows if row.get("answer") == "fixed"]
    seconds, cpu = (sorted(float(row[name]) for row in fixed if name in row) for name in ("seconds", "cpu_s"))
    return {
        "programs": len(rows),
        **answers,
        "fixed_pct": round(100 * len(fixed) / len(rows), 1) if rows else None,
        "seconds_median": seconds[len(seconds) // 2] if seconds else None,
        "seconds_max": seconds[-1] if seconds else None,
        "cpu_s_median": cpu[len(cpu) // 2] if cpu else None,
        "cpu_s_max": cpu[-1] if cpu else None,
        "by_template": Counter(str(row["template"]) for row in fixed),
        "unlike_the_twin": [row["name"] for row in fixed if row.get("twin")],
        "unmet": Counter(name for row in rows for name in row.get("unmet", ())),
    }


if __name__ == "__main__":
    main()
