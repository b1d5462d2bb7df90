#!/usr/bin/env python3
"""What `nsadiag analyze` needs for the flight-recorder dumps of many ranks, and torchfrtrace beside it on the same files.

    python benchmarks/scale/analyze_scale.py            # 64, 1024 and 10,000 ranks; 8 GB of dumps, half an hour
    python benchmarks/scale/analyze_scale.py --quick    # 64 and 256 ranks

Whole commands are timed, with the start of Python. Memory is the sum over all processes of the command. Each
verdict is held against the fault that was put in. torchfrtrace is not run above --most-for-torchfrtrace ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from dump_maker import FAULTS, Job, write_dumps

from nsadiag.commands.output import machine, versions

ROOT = Path(__file__).resolve().parents[2]
SAMPLED_EVERY_S = 0.02
ENVIRONMENT = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one command: what a person waits, what the CPUs work (which other load changes less), memory at the peak."""

    seconds: float
    cpu_s: float
    mib: float
    said: str


def timed(command: list[str]) -> Cost:
    """Runs it to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started, peak = time.monotonic(), 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL, env=ENVIRONMENT, cwd="/")
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, memory_of(watched))
            time.sleep(SAMPLED_EVERY_S)
        seconds = time.monotonic() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        said.seek(0)
        return Cost(seconds=seconds, cpu_s=cpu_s, mib=peak / 2**20, said=said.read())


def memory_of(process: psutil.Process) -> int:
    """Of it and its children; pages that they share count for each."""
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += each.memory_info().rss
    except psutil.Error:
        return total
    return total


def is_right(job: Job, said: str) -> bool:
    verdict = json.loads(said)["verdict"]
    guilty = [] if job.fault == "none" else [job.culprit % job.ranks]
    return bool(verdict["class"] == FAULTS[job.fault] and verdict["guilty_ranks"] == guilty)


def measured(job: Job, folder: Path, *, runs: int, with_torch: bool) -> dict[str, Any]:
    """Alternating runs over one directory of dumps; medians, and the ratio of each pair."""
    ours: list[Cost] = []
    theirs: list[Cost] = []
    for _ in range(runs):
        ours.append(timed([sys.executable, "-m", "nsadiag", "analyze", str(folder), "--json"]))
        if not is_right(job, ours[-1].said):
            raise SystemExit(f"wrong verdict for {job}: {ours[-1].said[:2000]}")
        if with_torch:
            tool = str(Path(sys.executable).with_name("torchfrtrace"))
            theirs.append(timed([tool, "--prefix", job.prefix, str(folder)]))
    figures: dict[str, Any] = {
        "nsadiag_s": round(statistics.median(c.seconds for c in ours), 2),
        "nsadiag_cpu_s": round(statistics.median(c.cpu_s for c in ours), 2),
        "nsadiag_mib": round(max(c.mib for c in ours)),
    }
    if theirs:
        pairs = list(zip(ours, theirs, strict=True))
        figures |= {
            "torchfrtrace_s": round(statistics.median(c.seconds for c in theirs), 1),
            "torchfrtrace_cpu_s": round(statistics.median(c.cpu_s for c in theirs), 1),
            "torchfrtrace_mib": round(max(c.mib for c in theirs)),
            "ratio": round(statistics.median(b.seconds / a.seconds for a, b in pairs), 1),
            "cpu_ratio": round(statistics.median(b.cpu_s / a.cpu_s for a, b in pairs), 1),
        }
    return {**figures, "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="64 and 256 ranks")
    parser.add_argument("--ranks", type=int, nargs="+", help="rank counts")
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3, help="of each command on each directory")
    parser.add_argument("--tp", type=int, nargs="+", default=[0, 8], help="sizes of tensor-parallel groups")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=["missing"])
    parser.add_argument("--most-for-torchfrtrace", type=int, default=1024, metavar="RANKS")
    parser.add_argument("--dumps", type=Path, help="where dumps are kept, and found again")
    options = parser.parse_args()
    counts = options.ranks or ([64, 256] if options.quick else [64, 1024, 10_000])
    kept = options.dumps or Path(tempfile.mkdtemp(prefix="analyze-scale-"))
    figures: dict[str, Any] = {}
    for ranks in counts:
        for tp in options.tp:
            for fault in options.faults:
                job = Job(ranks=ranks, entries=options.entries, fault=fault, tp=tp)
                name = f"{ranks}" + (f"-tp{tp}" if tp else "") + (f"-{fault}" if fault != "missing" else "")
                folder = kept / f"{name}-{job.entries}"
                if not folder.exists():
                    write_dumps(folder, job, processes=os.cpu_count() or 1)
                with_torch = ranks <= options.most_for_torchfrtrace
                figures[name] = measured(job, folder, runs=options.runs, with_torch=with_torch)
                if not options.json:
                    print(name, figures[name], flush=True)
                if not options.dumps:
                    shutil.rmtree(folder)
    if not options.dumps:
        kept.rmdir()
    if options.json:
        print(json.dumps({"machine": {**machine(), **versions()}, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
