#!/usr/bin/env python3
"""How often the verdict is right: every script of repro/, on a machine whose cores are all busy with something else.

    python benchmarks/verdicts/accuracy.py --runs 3                # everything three times; hours
    python benchmarks/verdicts/accuracy.py --quick                 # one script a class, once, without the comparison
    python benchmarks/verdicts/accuracy.py -k healthy --runs 10    # scripts with that in their name
    python benchmarks/verdicts/accuracy.py --rows rows.jsonl       # adds to the rows of earlier runs, and counts them too
    python benchmarks/verdicts/accuracy.py --jobs 3 --no-loops     # three jobs at once are load enough
    python benchmarks/verdicts/accuracy.py --cores 2 --runs 5      # on a large host: each job on two cores of its own, both busy
    python benchmarks/verdicts/accuracy.py -k "healthy|gpu_" --jobs 8 --no-loops  # where there are GPUs, jobs of as many ranks at most

A class, its ranks and its line are right if the script's promise says so. A false alarm is a job that is healthy or
slow, and was called hung. Beside each class stands what a person could have read off py-spy's stacks, off
torchfrtrace, and off the error message of a plain torchrun with a short time-out (baselines.py).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from baselines import Told, error_message, flight_recorder_alone, py_spy_alone  # noqa: E402
from shared import Row, answer, collected, is_right, percent  # noqa: E402

from nsadiag.analysis.rules.registry import CLASSES  # noqa: E402
from nsadiag.commands.output import machine  # noqa: E402
from tests.support.promises import Promise, promises  # noqa: E402
from tests.support.recordings.golden import run_script  # noqa: E402

CALM = {"healthy", "slow"}  # whoever calls such a job hung raises a false alarm
BUCKETS = (0.0, 0.5, 0.7, 0.8, 0.9, 1.01)


@contextmanager
def busy_cores(*, wanted: bool) -> Iterator[None]:
    """An endless loop on each core."""
    cores = os.sched_getaffinity(0) if wanted else ()
    loops = [
        subprocess.Popen(["taskset", "-c", str(n), sys.executable, "-c", "while True: pass"]) for n in cores
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def one(promise: Promise, out: Path, *, compare: bool) -> Row:
    """One run of a script, left in `out`, and what was right of its verdict."""
    run_script(promise, out)
    path = out / "verdict.json"
    if not path.exists():
        return {"name": promise.name, "class": promise.classes[0], "said": "no verdict", **_wrong(promise)}
    verdict = json.loads(path.read_text())
    told = compared(promise, out) if compare and promise.guilty_ranks else {}
    where, times = verdict["where"] or {}, verdict["times"]
    line = any(code in (where.get("code") or "") for code in promise.codes) if promise.codes else None
    hung = verdict["outcome"] == "hung"
    return {
        "name": promise.name,
        "class": promise.classes[0],
        "said": verdict["class"],
        "class_right": verdict["class"] in promise.classes and verdict["outcome"] in promise.outcomes,
        "rank_right": tuple(verdict["guilty_ranks"]) == promise.guilty_ranks,
        "line_right": line,
        "false_alarm": hung and bool(CALM & set(promise.outcomes)),
        "confidence": verdict["confidence"],
        "verdict_s": times["verdict_s"] - times["onset_s"] if hung and times["onset_s"] else None,
        "summary": verdict["summary"],
        "where": f"{where.get('file')}:{where.get('line')} {where.get('code')}",
        "load": round(os.getloadavg()[0], 1),
        "told": told,
    }


def _wrong(promise: Promise) -> Row:
    wrong = {"class_right": False, "rank_right": False, "line_right": False if promise.codes else None}
    return {**wrong, "false_alarm": False, "confidence": 0.0, "verdict_s": None, "summary": "", "told": {}}


def compared(promise: Promise, run: Path) -> dict[str, dict[str, bool | None]]:
    """The same questions put to the tools that everybody has."""
    guilty, codes = promise.guilty_ranks, promise.codes
    asked: dict[str, Callable[[], Told]] = {
        "py_spy": lambda: py_spy_alone(run, guilty, codes),
        "flight_recorder": lambda: flight_recorder_alone(run, guilty),
        "error_message": lambda: error_message(promise.command, guilty, codes),
    }
    return {tool: dataclasses.asdict(ask()) for tool, ask in asked.items()}


# -- figures --------------------------------------------------------------------------------------


def summed(rows: list[Row]) -> Row:
    def share(key: str) -> float | None:
        return percent(row[key] for row in rows)

    def tool_share(tool: str, what: str) -> float | None:
        return percent(row["told"][tool][what] for row in rows if tool in row["told"])

    waits = [row["verdict_s"] for row in rows if row["verdict_s"] is not None]
    return {
        "runs": len(rows),
        "class_pct": share("class_right"),
        "rank_pct": share("rank_right"),
        "line_pct": share("line_right"),
        "false_alarms": sum(row["false_alarm"] for row in rows),
        "stall_to_verdict_s_median": round(statistics.median(waits), 1) if waits else None,
        "py_spy_rank_pct": tool_share("py_spy", "ranks"),
        "py_spy_line_pct": tool_share("py_spy", "line"),
        "flight_recorder_rank_pct": tool_share("flight_recorder", "ranks"),
        "error_message_rank_pct": tool_share("error_message", "ranks"),
        "error_message_line_pct": tool_share("error_message", "line"),
    }


def calibration(rows: list[Row]) -> list[Row]:
    """How often class and ranks were right, by how sure the verdict was."""
    table = []
    for low, high in itertools.pairwise(BUCKETS):
        inside = [row for row in rows if low <= row["confidence"] < high]
        right = [row["class_right"] and row["rank_right"] for row in inside]
        if inside:
            table.append(
                {"from": low, "runs": len(inside), "right_pct": round(100 * sum(right) / len(right), 1)}
            )
    return table


def figures(rows: list[Row]) -> Row:
    by_class = {cls: [row for row in rows if row["class"] == cls] for cls in CLASSES}
    wrong = [row for row in rows if False in (row["class_right"], row["rank_right"], row["line_right"])]
    calm = [row for row in rows if row["class"] in ("healthy", "straggler_rank", "slow_compute")]
    return {
        **summed(rows),
        "scripts": len({row["name"] for row in rows}),
        "calm_runs": len(calm),
        "load_median": statistics.median(loads)
        if (loads := [r["load"] for r in rows if "load" in r])
        else None,
        "classes": {cls: summed(found) for cls, found in by_class.items() if found},
        "calibration": calibration(rows),
        "wrong": [{key: row.get(key) for key in ("name", "said", "where", "summary")} for row in wrong],
    }


COLUMNS = (
    ("runs", "runs"), ("class_pct", "class %"), ("rank_pct", "rank %"), ("line_pct", "line %"),
    ("false_alarms", "false alarms"), ("stall_to_verdict_s_median", "to verdict, s"),
    ("py_spy_rank_pct", "py-spy: rank %"), ("py_spy_line_pct", "line %"),
    ("flight_recorder_rank_pct", "torchfrtrace: rank %"),
    ("error_message_rank_pct", "error message: rank %"), ("error_message_line_pct", "line %"),
)  # fmt: skip


def table(told: Row) -> list[str]:
    """As markdown, which a terminal shows as well; without the columns that nothing was asked for."""
    rows = {**told["classes"], "**all**": told}
    columns = [(key, title) for key, title in COLUMNS if any(row[key] is not None for row in rows.values())]
    lines = [f"| class | {' | '.join(title for _, title in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = ("" if row[key] is None else f"{row[key]:g}" for key, _ in columns)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| confidence from | runs | right % |", "|---|---|---|"]
    lines += [f"| {b['from']:g} | {b['runs']} | {b['right_pct']:g} |" for b in told["calibration"]]
    lines += [
        "",
        *(
            f"wrong: {w['name']} was called {w['said']} at {w['where']}: {w['summary']}"
            for w in told["wrong"]
        ),
    ]
    return lines


# -- the walk -------------------------------------------------------------------------------------


def chosen(expression: str | None, *, quick: bool) -> list[Promise]:
    gpus = 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else int(machine()["gpus"])
    # NCCL wants a GPU for each rank.
    found = [p for p in promises() if (p.world_size <= gpus if gpus else not p.needs)]
    if expression:
        found = [p for p in found if re.search(expression, p.name)]
    return list({p.classes[0]: p for p in reversed(found)}.values()) if quick else found


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Rounds over all scripts, not runs in a row: what loads the machine meanwhile hits all alike."""
    scripts = chosen(options.k, quick=options.quick)

    def run(turn: int, promise: Promise) -> Row:
        compare = turn == 0 and not options.quick and not options.no_comparison
        with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
            row = one(promise, Path(folder, "run"), compare=compare)
            if options.keep and not is_right(row):
                shutil.copytree(
                    Path(folder, "run"), options.keep / f"{promise.name}-{turn}", dirs_exist_ok=True
                )
        print(
            f"{'right' if is_right(row) else 'WRONG'} {row['name']}: {row['said']}",
            file=sys.stderr,
            flush=True,
        )
        return row

    cores, seats = sorted(os.sched_getaffinity(0)), itertools.count()

    def sit() -> None:
        """A thread's affinity is what the processes it starts inherit."""
        first = next(seats) * options.cores
        os.sched_setaffinity(0, cores[first : first + options.cores])

    jobs = len(cores) // options.cores if options.cores else options.jobs
    with (
        busy_cores(wanted=not options.no_loops),
        ThreadPoolExecutor(jobs, initializer=sit if options.cores else None) as pool,
    ):
        todo = [pool.submit(run, turn, promise) for turn in range(options.runs) for promise in scripts]
        try:
            yield from (done.result() for done in as_completed(todo))
        finally:
            pool.shutdown(cancel_futures=True)


def refuse_py_spy() -> None:
    """From here on every py-spy that nsadiag starts answers as where the kernel forbids it to look."""
    program = Path(tempfile.mkdtemp(prefix="nsadiag-refuses-")) / "py-spy"
    program.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    program.chmod(0o700)
    os.environ["NSADIAG_PY_SPY"] = str(program)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="one script a class, without the comparison")
    parser.add_argument(
        "--runs", type=int, default=1, help="how often each script runs; 0: count --rows alone"
    )
    parser.add_argument(
        "-k",
        metavar="EXPR",
        help="only scripts in whose name this regular expression is found",
    )
    parser.add_argument("--no-comparison", action="store_true", help="nsadiag alone")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time")
    parser.add_argument(
        "--cores", type=int, help="of its own for each script, as many at a time as there are cores for"
    )
    parser.add_argument("--no-loops", action="store_true", help="other work loads the machine already")
    parser.add_argument("--keep", type=Path, help="where to keep the run directories of wrong verdicts")
    parser.add_argument("--rows", type=Path, help="a file of rows: earlier ones count, new ones are added")
    parser.add_argument(
        "--without", choices=["py-spy"], help="as where no process may be read; without the comparison"
    )
    options = parser.parse_args()
    if options.without:
        options.no_comparison = True
        refuse_py_spy()
    rows = collected(options.rows, measured(options) if options.runs else ())
    if not rows:
        raise SystemExit("nothing was run")
    told = figures(rows)
    answer(told, table(told), as_json=options.json)


if __name__ == "__main__":
    main()
