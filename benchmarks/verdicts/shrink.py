#!/usr/bin/env python3
"""How short a failing script gets, and how soon: `nsadiag shrink` on the faults of repro/ that two CPU ranks show.

    python benchmarks/verdicts/shrink.py                        # every fault that hangs, crashes or goes wrong; hours
    python benchmarks/verdicts/shrink.py --quick                # one script a class, the quickest half of them
    python benchmarks/verdicts/shrink.py -k rank_conditional    # scripts with that in their name
    python benchmarks/verdicts/shrink.py --rows rows.jsonl      # adds to the rows of earlier runs, and counts them too
    python benchmarks/verdicts/shrink.py --jobs 8               # eight at a time, each on two cores of its own

`lines` is the whole file that comes out, docstring and empty lines included; `code lines` are those of the original
without its docstring. The seconds are those of `nsadiag shrink` from start to end, two fresh runs at the end included.
A signature is kept if verdict.json of both fresh runs, under plain torchrun in an empty directory, has the same one; where the parameter
in it is another in each run of the script itself, any will do.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from shared import Row, answer, collected, earlier  # noqa: E402

from tests.support.promises import Promise, code_lines, promises  # noqa: E402
from tests.support.recordings.golden import run_script  # noqa: E402

FAULTS = {"hung", "crashed", "wrong"}
QUICK = {
    "rank_exception",
    "rank_conditional_collective",
    "ddp_ready_twice",
    "collective_args_mismatch",
    "uneven_inputs",
}


def chosen(expression: str | None, *, quick: bool) -> list[Promise]:
    """Faults that show on two CPU ranks under torchrun."""
    found = [
        p
        for p in promises()
        if not p.needs and p.world_size == 2 and p.launch[:1] == ("torchrun",)
        and set(p.outcomes) <= FAULTS
    ]  # fmt: skip
    if expression:
        found = [p for p in found if expression in p.name]
    if quick:
        found = list({p.classes[0]: p for p in reversed(found) if p.classes[0] in QUICK}.values())
    random.Random(0).shuffle(found)  # what a walk that is cut short has seen is a sample of all
    return found


def one(promise: Promise, folder: Path) -> Row:
    """The script run once under the watch, and what came out was cut down."""
    run_script(promise, folder / "run")
    before = json.loads((folder / "run" / "verdict.json").read_text())
    row: Row = {"name": promise.name, "class": promise.classes[0], "said": before["class"]}
    row["code_lines"] = len(code_lines(promise.script))
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "nsadiag", "shrink", str(folder / "run"), "--out", str(folder / "shrunk"), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    row["seconds"] = round(time.monotonic() - started, 1)
    if done.returncode not in (0, 1):
        return {**row, "kept": False, "lines": None, "why": done.stderr.strip().splitlines()[-1:]}
    told = json.loads(done.stdout)
    # Where the script draws the parameter by lot, so does a second run of the script itself.
    same = told.get("signature") == before["signature"] or (
        told.get("any_parameter") and told.get("class") == before["class"]
    )
    kept = told["conclusion"] == "kept" and bool(same)
    return {
        **row,
        "kept": kept,
        "lines": told.get("lines"),
        "trials": told["trials"],
        "conclusion": told["conclusion"],
        "why": told.get("why"),
        "source": told.get("source"),
    }


def pinned(pairs: multiprocessing.Queue[tuple[int, int]]) -> None:
    """This process and all that it starts stay on two cores."""
    os.sched_setaffinity(0, pairs.get())


def in_a_folder(promise: Promise) -> Row:
    with tempfile.TemporaryDirectory(prefix="shrink-") as folder:
        return one(promise, Path(folder))


def measured(scripts: list[Promise], jobs: int) -> Iterator[Row]:
    """Rows as they are done. More jobs than there are pairs of cores are not begun."""
    cores = sorted(os.sched_getaffinity(0))
    pairs: multiprocessing.Queue[tuple[int, int]] = multiprocessing.Queue()
    jobs = max(min(jobs, len(cores) // 2), 1)
    for n in range(jobs):
        pairs.put((cores[2 * n], cores[min(2 * n + 1, len(cores) - 1)]))
    with multiprocessing.Pool(jobs, pinned, (pairs,)) as pool:
        for row in pool.imap_unordered(in_a_folder, scripts):
            print(
                f"{'kept' if row['kept'] else 'LOST'} {row['name']}: {row['code_lines']} to {row['lines']} lines, "
                f"{row['seconds']} s",
                file=sys.stderr,
                flush=True,
            )
            yield row


def figures(rows: list[Row]) -> Row:
    lines = [row["lines"] for row in rows if row["lines"]]
    return {
        "scripts": len(rows),
        "lines_median": statistics.median(lines) if lines else None,
        "seconds_median": statistics.median(row["seconds"] for row in rows),
        "seconds_max": max(row["seconds"] for row in rows),
        "trials_median": statistics.median(row.get("trials", 0) for row in rows),
        "signature_kept_pct": round(100 * sum(row["kept"] for row in rows) / len(rows), 1),
        "rows": [{k: v for k, v in row.items() if k != "source"} for row in rows],
    }


def table(told: Row) -> list[str]:
    """As markdown, which a terminal shows as well."""
    rows = [
        "| script | class | code lines | lines | trials | seconds | signature |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in told["rows"]:
        kept = "kept" if row["kept"] else f"lost: {row.get('why') or row.get('conclusion')}"
        rows.append(
            f"| {row['name']} | {row['said']} | {row['code_lines']} | {row['lines'] or ''} | {row.get('trials', '')} "
            f"| {row['seconds']} | {kept} |"
        )
    rows.append(
        f"| **median** of {told['scripts']} | | | {told['lines_median']} | {told['trials_median']} "
        f"| {told['seconds_median']} | {told['signature_kept_pct']} % kept |"
    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="one script of each of five classes")
    parser.add_argument("-k", metavar="EXPR", help="only scripts whose name has this in it")
    parser.add_argument("--rows", type=Path, help="a file of rows: earlier ones count and are not run again")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at a time, each on two cores of its own")
    options = parser.parse_args()
    known = {row["name"] for row in earlier(options.rows)}
    wanted = [p for p in chosen(options.k, quick=options.quick) if p.name not in known]
    rows = collected(options.rows, measured(wanted, options.jobs))
    if not rows:
        raise SystemExit("nothing was run")
    told = figures(rows)
    answer(told, table(told), as_json=options.json)


if __name__ == "__main__":
    main()
