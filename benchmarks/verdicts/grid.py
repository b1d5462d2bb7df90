#!/usr/bin/env python3
"""How often the verdict is right in pipeline x data x tensor parallel groups: each fault on each rank in turn.

    python benchmarks/verdicts/grid.py                        # NCCL where there are GPUs, a rank each; else gloo
    python benchmarks/verdicts/grid.py --ranks 8 --jobs 6     # six jobs at a time; on GPUs they share them
    python benchmarks/verdicts/grid.py -k "kernel|error.*2x1x1" # runs with that in their name
    python benchmarks/verdicts/grid.py --rows rows.jsonl      # adds to the rows of earlier runs, and counts them too

Jobs are grid_programs/train.py in every layout of three sizes whose product is the number of ranks. Beside one faulty
rank there are several at once ("several"), each in another place of the grid, and healthy runs of each layout.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from shared import Row, answer, collected, environment, is_right, percent  # noqa: E402

from nsadiag.commands.output import machine  # noqa: E402
from nsadiag.evidence.layout import read_json  # noqa: E402

PROGRAM = REPO / "benchmarks/verdicts/grid_programs/train.py"
# What the verdict on each fault should be.
CLASSES = {
    "kernel": ("gpu_kernel_hang",),
    "cuda_error": ("rank_exception",),
    "memory": ("gpu_oom",),
    "lock": ("local_lock_deadlock",),
    "loop": ("livelock_user_code",),
    "exception": ("rank_exception",),
    "exit": ("rank_exited_early",),
    "killed": ("rank_killed",),
    "skipped": ("rank_conditional_collective",),
    "healthy": ("healthy",),
}
ON_GPUS = ("kernel", "cuda_error", "memory")
TIMEOUT_S = 120


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    sizes: tuple[int, int, int]  # pipeline, data, tensor
    fault: str
    faulty: tuple[int, ...]

    @property
    def name(self) -> str:
        place = "x".join(map(str, self.sizes))
        return f"{self.fault}-{place}" + "".join(f"-{rank}" for rank in self.faulty)

    @property
    def arguments(self) -> list[str]:
        return [*map(str, self.sizes), self.fault, ",".join(map(str, self.faulty)) or "none"]

    def lines(self) -> list[int]:
        """Those that a verdict may name; none where any will do."""
        text = PROGRAM.read_text().splitlines()
        return [n for n, line in enumerate(text, 1) if line.endswith(f"#: {self.fault}")]


def layouts(ranks: int) -> list[tuple[int, int, int]]:
    """Sizes in twos and fours of pipeline, data and tensor parallel groups: at least two of them larger than one."""
    sizes = [n for n in (1, 2, 4) if n <= ranks]
    found = [c for c in itertools.product(sizes, repeat=3) if c[0] * c[1] * c[2] == ranks]
    return [c for c in found if sum(n > 1 for n in c) >= min(2, ranks // 2)]


def jobs(ranks: int, pattern: str, *, gpus: bool) -> Iterator[Job]:
    """Faults in turn, so that a run which is cut short has some of each."""
    return (job for job in _jobs(ranks, gpus=gpus) if re.search(pattern, job.name))


def _jobs(ranks: int, *, gpus: bool) -> Iterator[Job]:
    faults = [f for f in CLASSES if f != "healthy" and (gpus or f not in ON_GPUS)]
    for rank in range(ranks):
        for sizes, fault in itertools.product(layouts(ranks), faults):
            # Whoever is alone with its replicas leaves nothing out that anybody waits for.
            if fault != "skipped" or sizes[1] > 1:
                yield Job(sizes=sizes, fault=fault, faulty=(rank,))
        for sizes in layouts(ranks):
            yield Job(sizes=sizes, fault="healthy", faulty=())
            for fault in faults:
                if fault in ("kernel", "lock", "loop") and rank != ranks - 1 - rank and rank < ranks // 2:
                    yield Job(sizes=sizes, fault=fault, faulty=(rank, ranks - 1 - rank))


def one(job: Job, ranks: int, out: Path) -> Row:
    launch = [f"{Path(sys.executable).parent / 'torchrun'}", "--standalone", f"--nproc-per-node={ranks}"]
    ours = [
        sys.executable,
        "-m",
        "nsadiag",
        "run",
        "--quiet",
        "--timeout",
        str(TIMEOUT_S),
        "--out",
        str(out),
        "--",
    ]
    subprocess.run(
        [*ours, *launch, str(PROGRAM), *job.arguments],
        cwd=out.parent, env=environment(), capture_output=True, check=False,
    )  # fmt: skip
    verdict = read_json(out / "verdict.json", {})
    where, times, allowed = verdict.get("where") or {}, verdict.get("times") or {}, job.lines()
    hung = verdict.get("outcome") == "hung"
    return {
        "name": job.name, "fault": job.fault, "several": len(job.faulty) > 1,
        "said": verdict.get("class"), "outcome": verdict.get("outcome"),
        "class_right": verdict.get("class") in CLASSES[job.fault],
        "rank_right": tuple(verdict.get("guilty_ranks", ())) == job.faulty,
        "line_right": where.get("line") in allowed if allowed else None,
        "false_alarm": hung and job.fault == "healthy",
        "confidence": verdict.get("confidence"),
        "verdict_s": times["verdict_s"] - times["onset_s"] if hung and times.get("onset_s") else None,
        "guilty": verdict.get("guilty_ranks"), "where": f"{where.get('file')}:{where.get('line')}",
        "summary": verdict.get("summary"), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def summed(rows: list[Row]) -> Row:
    figures: Row = {"runs": len(rows), "right": sum(map(is_right, rows))}
    figures |= {
        f"{key}_pct": percent(row[f"{key}_right"] for row in rows) for key in ("class", "rank", "line")
    }
    return figures | {"false_alarms": sum(row["false_alarm"] for row in rows)}


def measured(options: argparse.Namespace) -> Iterator[Row]:
    todo = list(jobs(options.ranks, options.k, gpus=bool(machine()["gpus"])))

    def run(job: Job) -> Row:
        with tempfile.TemporaryDirectory(prefix="grid-") as folder:
            row = one(job, options.ranks, Path(folder, "run"))
            if options.keep and not is_right(row):
                shutil.copytree(Path(folder, "run"), options.keep / job.name, dirs_exist_ok=True)
        print(
            f"{'right' if is_right(row) else 'WRONG'} {row['name']}: {row['said']}",
            file=sys.stderr,
            flush=True,
        )
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(run, job) for job in todo]
        try:
            with contextlib.suppress(KeyboardInterrupt):  # what is done by then is told
                yield from (done.result() for done in as_completed(waiting))
        finally:
            pool.shutdown(cancel_futures=True)


def table(figures: Row, rows: list[Row]) -> Iterator[str]:
    yield "| fault | runs | right | class % | rank % | line % | false alarms |"
    yield "|---|---|---|---|---|---|---|"
    for name, told in {**figures["faults"], "several": figures["several"], "**all**": summed(rows)}.items():
        yield f"| {name} | {' | '.join('' if v is None else f'{v:g}' for v in told.values())} |"
    for row in rows:
        if not is_right(row):
            yield f"wrong: {row['name']} was called {row['said']} of {row['guilty']} at {row['where']}: {row['summary']}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--ranks", type=int, default=int(machine()["gpus"]) or 8, help="of each job")
    parser.add_argument(
        "-k", metavar="EXPR", default="", help="only runs in whose name this is found: FAULT-2x1x2-RANK"
    )
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    parser.add_argument("--rows", type=Path, help="a file of rows: earlier ones count, new ones are added")
    parser.add_argument("--keep", type=Path, help="where to keep the run directories of wrong verdicts")
    options = parser.parse_args()
    rows = collected(options.rows, measured(options))
    by_fault = {
        f: summed([r for r in rows if r["fault"] == f]) for f in CLASSES if any(r["fault"] == f for r in rows)
    }
    figures = {**summed(rows), "faults": by_fault, "several": summed([r for r in rows if r["several"]])}
    answer(figures, table(figures, rows), as_json=options.json)


if __name__ == "__main__":
    main()
