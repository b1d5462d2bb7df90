"""Recorded incidents that NVIDIA's resiliency extension publishes: our answers beside the injected faults.

    git clone https://github.com/NVIDIA/nvidia-resiliency-ext
    python benchmarks/verdicts/others/resiliency_ext.py nvidia-resiliency-ext [--json]

Each folder under tests/attribution/unit/fr_traces has flight-recorder dumps of 16 ranks and a log of what was injected.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from nsadiag.analysis.verdict import judge_evidence as judge_external

TRACES = Path("tests/attribution/unit/fr_traces")
INJECTED = re.compile(r"Rank (\d+), fault_type: (\w+)")
# A GPU fault is named as a device that is stuck, a held GIL as a rank that does not come.
RIGHT = {"GPU_ERROR": {"gpu_kernel_hang"}, "LOCK_GIL": {"missing_rank", "gil_held_native_call"}}


def truth_of(folder: Path) -> tuple[tuple[int, ...], str]:
    """The ranks in which a fault was injected, and its kind."""
    found = INJECTED.findall((folder / "fault_injection.log").read_text())
    return tuple(sorted(int(rank) for rank, _ in found)), found[0][1]


def row_of(folder: Path) -> dict[str, object]:
    ranks, fault = truth_of(folder)
    verdict = judge_external(folder)
    return {
        "incident": folder.name,
        "injected": fault,
        "ranks": list(ranks),
        "class": verdict.cls,
        "guilty_ranks": list(verdict.guilty_ranks),
        "right": verdict.guilty_ranks == ranks and verdict.cls in RIGHT.get(fault, set()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of NVIDIA/nvidia-resiliency-ext")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folders = sorted((options.checkout / TRACES).glob("*/fault_injection.log"))
    if not folders:
        sys.exit(f"error: no recorded incidents under {options.checkout / TRACES}")
    rows = [row_of(log.parent) for log in folders]
    if options.json:
        print(json.dumps({"incidents": rows, "right": sum(bool(row["right"]) for row in rows)}, indent=1))
        return
    for row in rows:
        mark = "right" if row["right"] else "WRONG"
        print(
            f"{row['incident']:16} {row['injected']:10} on {row['ranks']!s:10} {mark}: {row['class']} {row['guilty_ranks']}"
        )
    print(f"{sum(bool(row['right']) for row in rows)} of {len(rows)} right")


if __name__ == "__main__":
    main()
