#!/usr/bin/env python3
"""Programs of many kinds, each run plain and under `nsadiag run`: how many are the same, bit by bit.

What differs by design shows a row of docs/harmless.md and is counted apart; anything else that differs is a defect.

python benchmarks/cost/harmless.py                  # all of them, some twenty minutes on two idle cores
python benchmarks/cost/harmless.py --quick          # without those marked slow
python benchmarks/cost/harmless.py --only torch/    # whose name begins so
python benchmarks/cost/harmless.py --probes full    # watched with every probe
python benchmarks/cost/harmless.py --jobs 60 --share 6    # on a large machine, in a few minutes
python benchmarks/cost/harmless.py --armed          # not under `nsadiag run`: in this environment, armed meanwhile
python benchmarks/cost/harmless.py --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "harmless"))

import parity
import suite


@dataclass
class Row:
    """One family's programs."""

    equal: int = 0
    by_design: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    @property
    def run(self) -> int:
        return self.equal + len(self.by_design) + len(self.different)


def judged(program: suite.Program, root: Path, probes: str) -> dict[str, list[str]]:
    where = root / program.name.replace("/", "-")
    return parity.differences(program, *parity.both(program, where, probes=probes))


def results(
    programs: list[suite.Program], root: Path, told: argparse.Namespace
) -> Iterator[tuple[suite.Program, dict[str, list[str]]]]:
    """As they come. Raises futures.TimeoutError where the minutes are over before the last."""
    pool = ThreadPoolExecutor(told.jobs)
    judging = {pool.submit(judged, program, root, told.probes): program for program in programs}
    for done in as_completed(judging, timeout=told.minutes * 60 or None):
        yield judging[done], done.result()


def chosen(only: list[str], quick: bool) -> list[suite.Program]:
    programs = [p for p in suite.each() if not (quick and p.slow)]
    if only:
        programs = [p for p in programs if p.name.startswith(tuple(only))]
    return programs


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--quick", action="store_true", help="without those marked slow")
    ask.add_argument("--only", nargs="*", default=[], help="names, or beginnings of them")
    ask.add_argument("--probes", default="", help="light or full, for all of them")
    ask.add_argument("--armed", action="store_true", help="in an armed environment, with no `nsadiag run`")
    ask.add_argument("--jobs", type=int, default=1, help="so many at once")
    ask.add_argument("--share", type=int, default=1000, help="at most so many programs in a job")
    ask.add_argument("--minutes", type=float, default=0, help="show what there is after so many")
    ask.add_argument("--json", action="store_true")
    told = ask.parse_args()
    told.probes = "armed" if told.armed else told.probes
    if missing := [name for name in ("nsadiag", "torchrun") if not (suite.BIN / name).exists()]:
        ask.error(f"{' and '.join(missing)} must be beside {sys.executable}, which runs the programs")
    if not runs_without_variables():
        ask.error(f"{suite.BIN / 'nsadiag'} needs PYTHONPATH, and programs get none: install it")

    programs = chosen(told.only, told.quick)
    rows: dict[str, Row] = {}
    for program in programs:
        row = rows.setdefault(program.family, Row())
        if program.lacks():
            row.not_run.append(f"{program.name} (needs {program.lacks()})")
    jobs = [p for p in suite.batched(programs, told.share) if not p.lacks()]
    by_design = {p.name: p.by_design for p in programs if p.by_design}
    is_whole = True
    with tempfile.TemporaryDirectory(prefix="harmless-") as root, armed() if told.armed else nullcontext():
        try:
            for program, found in results(jobs, Path(root), told):
                note(rows[program.family], program, found, by_design)
                new = {} if told.json else {n: c for n, c in found.items() if n not in by_design}
                for name, changes in new.items():
                    print(f"DIFFERS {name}", *(f"    {change}" for change in changes), sep="\n", flush=True)
        except futures.TimeoutError as error:  # another than the builtin before Python 3.11
            is_whole = False
            print(f"NOT ALL: {error}", file=sys.stderr)
        show(rows, as_json=told.json)
        if not is_whole:
            sys.stdout.flush()
            os._exit(1)  # not after the last job


def runs_without_variables() -> bool:
    asked = subprocess.run(
        [suite.BIN / "nsadiag", "--version"], env={}, stdout=subprocess.DEVNULL, check=False
    )
    return asked.returncode == 0


@contextmanager
def armed() -> Iterator[None]:
    """This environment, with a watcher that is not a program's own."""
    ours = str(suite.BIN / "nsadiag")
    subprocess.run([ours, "arm"], check=True, stdout=subprocess.DEVNULL)
    watcher = subprocess.Popen([ours, "arm", "--watch"], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        watcher.terminate()
        watcher.wait()
        subprocess.run([ours, "disarm"], check=True, stdout=subprocess.DEVNULL)


def note(row: Row, program: suite.Program, found: dict[str, list[str]], by_design: dict[str, str]) -> None:
    """Counts the parts of what was run."""
    row.equal += sum(part not in found for part in program.parts)
    for name in found:
        if name in by_design:
            row.by_design.append(f"{name} ({by_design[name]})")
        else:
            row.different.append(name)


def show(rows: dict[str, Row], *, as_json: bool) -> None:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    equal, run = sum(r.equal for r in rows.values()), sum(r.run for r in rows.values())
    by_design = sum(len(r.by_design) for r in rows.values())
    cpu_s = round(used.ru_utime + used.ru_stime, 1)
    if as_json:
        figures = {"programs": run, "equal": equal, "by_design": by_design, "cpu_s": cpu_s}
        by_family = {name: vars(row) for name, row in sorted(rows.items())}
        machine = {"cpus": os.cpu_count(), "kernel": platform.release()}
        print(json.dumps({"machine": machine, "figures": {**figures, "families": by_family}}, indent=1))
        return
    for name, row in sorted(rows.items()):
        print(
            f"{name:14} {row.equal:4} of {row.run:4} equal",
            *(f"  by design: {n}" for n in row.by_design),
            *(f"  DIFFERS: {n}" for n in row.different),
            *(f"  not run: {n}" for n in row.not_run),
            sep="\n",
        )
    print(f"{equal} of {run} equal, {by_design} differ by design ({cpu_s:g} s of CPU)")


if __name__ == "__main__":
    main()
