#!/usr/bin/env python3
"""How many silent training errors are detected, and how many healthy jobs are accused: the programs of silent_programs/.

    python benchmarks/verdicts/silent.py                                # all, with the probes `light,invariants`
    python benchmarks/verdicts/silent.py --probes light                 # with the default probes alone
    python benchmarks/verdicts/silent.py --only ddp/no_set_epoch gan    # programs in whose name this stands
    python benchmarks/verdicts/silent.py --jobs 2 --repeat 3            # two at a time, each three times
    python benchmarks/verdicts/silent.py --rows rows.jsonl              # adds to the rows of earlier runs, and counts them too
    python benchmarks/verdicts/silent.py --flips 40                     # bits that flip in one rank's gradient, drawn at random

Each file there is one training job on two CPU ranks (gloo) with its faults and its healthy variants, listed in its
docstring as `name | kind | sentence | step at which it breaks`. Behind `#:` a line says which variants have it: `+a` only
a, `-a` all but a, `!a` only a, whose fault it is, and `@a` that it is a place that a verdict on a may name. The file
without any fault is the correct twin of each.

A fault is detected where the verdict's outcome is `wrong`, its line is right where it is one of those marked, and it is in
time where the verdict's step is at most two after the one at which it breaks. Jobs run on warm launchers, as the cells of
a matrix do.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from shared import Row, answer, collected, percent  # noqa: E402

from nsadiag.agent.watching.state import WatchOptions  # noqa: E402
from nsadiag.analysis.verdict import judge_directory  # noqa: E402
from nsadiag.engines.local import WarmLauncher, run_warm  # noqa: E402
from nsadiag.evidence.layout import RunDir  # noqa: E402

PROGRAMS = REPO / "benchmarks/verdicts/silent_programs"
KINDS = {
    "ranks": "across ranks",
    "time": "over time",
    "graph": "through the graph",
    "control": "against a control",
    "healthy": "healthy",
}
IN_TIME = 2  # steps
REPLICAS = 3  # where a bit flips: with two, nobody can say which one is right
STEPS, TENSORS, BITS = range(4, 13), 124, range(18, 31)  # of flip.py; bits that an update in float32 can show
TIMEOUT_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """One variant of a file of silent_programs/."""

    name: str
    kind: str
    sentence: str
    breaks_at: int
    source: str
    places: frozenset[str]  # lines of source, as they are written, that a verdict may name


def programs() -> list[Program]:
    """All variants of all files, and each file's correct twin."""
    return [variant for path in sorted(PROGRAMS.glob("*.py.in")) for variant in variants(path)]


def variants(path: Path) -> Iterator[Program]:
    text = path.read_text()
    head = text.split('"""')[1].strip().splitlines()
    rows = [[part.strip() for part in line.split("|")] for line in head if " | " in line]
    for name, kind, sentence, *breaks_at in rows:
        source, places = variant_of(text, name)
        yield Program(
            name=f"{path.name.removesuffix('.py.in')}/{name}",
            kind=kind,
            sentence=sentence,
            breaks_at=int(breaks_at[0]) if breaks_at else 0,
            source=source,
            places=places,
        )


def variant_of(text: str, name: str) -> tuple[str, frozenset[str]]:
    """The program of that name, without its docstring and without marks, and the lines that a verdict on it may name."""
    kept, places = [], set()
    for line in text.split('"""', 2)[2].lstrip().splitlines():
        code, _, marks = line.partition("  #: ")
        said = set(marks.split())
        only = {mark[1:] for mark in said if mark[0] in "+!"}
        if (only and name not in only) or f"-{name}" in said:
            continue
        kept.append(code)
        if said & {f"!{name}", f"@{name}"}:
            places.add(code.strip())
    return "\n".join(kept) + "\n", frozenset(places)


def one(program: Program, folder: Path, launcher: WarmLauncher, probes: str) -> Row:
    """One run of a program, and what its verdict said."""
    script = folder / "train.py"
    folder.mkdir(parents=True)
    script.write_text(program.source)
    shutil.copy(PROGRAMS / "workload.py", folder)
    run = RunDir(path=folder / "run")
    options = WatchOptions(timeout_s=TIMEOUT_S)
    run_warm(launcher, [str(script)], run, options, world_size=2, probes=probes, cwd=folder)
    return judged(program, judge_directory(run.path).to_json())


def flipped(seed: int, folder: Path, launcher: WarmLauncher, probes: str) -> Row:
    """One run of flip.py, with a tensor, an element, a bit, a step and a rank of their own."""
    draw = random.Random(seed)
    step, rank = draw.choice(STEPS), draw.randrange(REPLICAS)
    drawn = [draw.randrange(TENSORS), draw.randrange(1 << 30), draw.choice(BITS), step, rank]
    folder.mkdir(parents=True)
    for name in ("flip.py", "workload.py"):
        shutil.copy(PROGRAMS / name, folder)
    run = RunDir(path=folder / "run")
    command = [str(folder / "flip.py"), *map(str, drawn)]
    options = WatchOptions(timeout_s=TIMEOUT_S)
    run_warm(launcher, command, run, options, world_size=REPLICAS, probes=probes, cwd=folder)
    verdict = judge_directory(run.path).to_json()
    found = (verdict["where"] or {}).get("step")
    return {
        "drawn": drawn,
        "detected": verdict["outcome"] == "wrong",
        "rank": list(verdict["guilty_ranks"]) == [rank],
        "in_time": found is not None and 0 <= found - step <= IN_TIME,
        "summary": verdict["summary"],
    }


def flips(options: argparse.Namespace) -> Row:
    """How many of them are detected, at their step and rank."""
    with tempfile.TemporaryDirectory(prefix="flips-") as text, launchers(options.jobs, Path(text)) as free:

        def run(seed: int) -> Row:
            launcher = free.get()
            try:
                return flipped(seed, (options.keep or Path(text)) / str(seed), launcher, options.probes)
            finally:
                free.put(launcher)

        with ThreadPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(run, range(options.flips)))
    found = [row for row in rows if row["detected"]]
    return {
        "flips": len(rows),
        "detected_pct": percent(row["detected"] for row in rows),
        "rank_pct": percent(row["rank"] for row in found),
        "in_time_pct": percent(row["in_time"] for row in found),
        "missed": [f"{row['drawn']}: {row['summary']}" for row in rows if not row["detected"]],
    }


def judged(program: Program, verdict: dict[str, Any]) -> Row:
    where = verdict["where"] or {}
    wrong = verdict["outcome"] == "wrong"
    row = {
        "name": program.name,
        "kind": program.kind,
        "outcome": verdict["outcome"],
        "said": verdict["class"],
        "detected": wrong,
        "summary": verdict["summary"],
        "where": f"{where.get('line')}: {where.get('code')}",
        "step": where.get("step"),
        "confidence": verdict["confidence"],
    }
    if program.kind != "healthy" and wrong:
        code = str(where.get("code") or "").strip()
        # The code of a line may be cut where it is long.
        row["line"] = bool(code) and any(code in place or place in code for place in program.places)
        if where.get("step") is not None:
            row["late"] = where["step"] - program.breaks_at
    return row


# -- figures --------------------------------------------------------------------------------------


def figures(rows: list[Row]) -> Row:
    faults = [row for row in rows if row["kind"] != "healthy"]
    healthy = [row for row in rows if row["kind"] == "healthy"]
    found = [row for row in faults if row["detected"]]
    return {
        "faults": len(faults),
        "detected_pct": percent(row["detected"] for row in faults),
        "line_pct": percent(row["line"] for row in found),
        "in_time_pct": percent(row["late"] <= IN_TIME for row in found if "late" in row),
        "healthy_runs": len(healthy),
        "accused": [row["name"] for row in healthy if row["outcome"] not in ("healthy", "slow")],
        "kinds": {
            title: {
                "faults": sum(row["kind"] == kind for row in faults),
                "detected": sum(row["kind"] == kind for row in found),
                "line": sum(row["kind"] == kind and row["line"] for row in found),
            }
            for kind, title in KINDS.items()
            if kind != "healthy"
        },
        "missed": [f"{row['name']}: {row['said']}" for row in faults if not row["detected"]],
        "wrong_line": [f"{row['name']}: {row['where']}" for row in found if not row["line"]],
    }


def table(told: Row) -> list[str]:
    lines = ["| kind | faults | detected | line |", "|---|---|---|---|"]
    lines += [f"| {k} | {v['faults']} | {v['detected']} | {v['line']} |" for k, v in told["kinds"].items()]
    lines.append(f"| all | {told['faults']} | {told['detected_pct']} % | {told['line_pct']} % |")
    accused = ", ".join(told["accused"]) or "none"
    lines += ["", f"in time (two steps): {told['in_time_pct']} % of those with a step"]
    lines += [f"healthy runs: {told['healthy_runs']}, accused: {accused}", ""]
    lines += [f"missed: {each}" for each in told["missed"]]
    lines += [f"line: {each}" for each in told["wrong_line"]]
    return lines


# -- the walk -------------------------------------------------------------------------------------


@contextlib.contextmanager
def launchers(count: int, folder: Path) -> Iterator[queue.Queue[WarmLauncher]]:
    free: queue.Queue[WarmLauncher] = queue.Queue()
    made = [WarmLauncher(folder / f"launcher{n}.log", preload=("torch",), env={}) for n in range(count)]
    for launcher in made:
        free.put(launcher)
    try:
        yield free
    finally:
        for launcher in made:
            launcher.close()


def measured(options: argparse.Namespace) -> Iterator[Row]:
    chosen = [
        p for p in programs() if not options.only or any(re.search(each, p.name) for each in options.only)
    ]
    if options.kind:
        chosen = [p for p in chosen if p.kind in options.kind]
    with (
        tempfile.TemporaryDirectory(prefix="silent-") as text,
        launchers(options.jobs, Path(text)) as free,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        folder = options.keep or Path(text)

        def run(turn: int, program: Program) -> Row:
            launcher = free.get()
            try:
                return one(program, folder / f"{program.name}-{turn}", launcher, options.probes)
            finally:
                free.put(launcher)

        todo = [pool.submit(run, turn, each) for turn in range(options.repeat) for each in chosen]
        for done in as_completed(todo):
            row = done.result()
            shown = f"{row['said']} at {row['where']}" if row["detected"] else row["said"]
            print(f"{row['name']} ({row['kind']}): {shown}", file=sys.stderr, flush=True)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--only", nargs="*", metavar="EXPR", help="programs in whose name one of these is found"
    )
    parser.add_argument("--kind", nargs="*", choices=KINDS, help="programs of these kinds")
    parser.add_argument("--probes", default="light,invariants", help="as for `nsadiag run`")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--repeat", type=int, default=1, help="how often each is run")
    parser.add_argument("--keep", type=Path, help="where to keep programs and run directories")
    parser.add_argument("--rows", type=Path, help="a file of rows: earlier ones count, new ones are added")
    parser.add_argument("--flips", type=int, default=0, help="that many runs of flip.py instead")
    options = parser.parse_args()
    if options.flips:
        answer(flips(options), (), as_json=True)
        return
    rows = collected(options.rows, measured(options))
    told = figures(rows)
    told["outcomes"] = dict(Counter(row["outcome"] for row in rows))
    answer(told, table(told), as_json=options.json)


if __name__ == "__main__":
    main()
