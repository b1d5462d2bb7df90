"""Snapshots of each rank, and whether it moved between them: an upper bound for the strength of a verdict from stacks."""

from __future__ import annotations

from typing import Literal

from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.records import Strength

Movement = Literal["none", "one", "same", "moved"]
# What nobody looked at twice may be on its way.
STRONGEST: dict[Movement, Strength] = {
    "none": Strength.STRONG,
    "one": Strength.GUESS,
    "same": Strength.STRONG,
    "moved": Strength.GUESS,
}
GAPS: dict[Movement, str] = {
    "none": "one snapshot of each rank: nothing shows whether the job still moved when it was taken",
    "one": "one snapshot of each rank: nothing shows whether the job still moved when it was taken",
    "same": "the stacks do not tell how long after one another they were taken",
    "moved": "some rank stood elsewhere in its next stack: the job moved",
}


def movement_of(cell: CellEvidence) -> Movement:
    """`same` where each rank that was looked at stood at the same lines twice."""
    seen = [lines for rank in cell.ranks if (lines := _lines(rank))]
    if not seen:
        return "none"
    twice = [lines[-2:] for lines in seen if len(lines) > 1]
    if any(before != after for before, after in twice):
        return "moved"
    return "same" if len(twice) == len(seen) else "one"


def _lines(rank: RankEvidence) -> list[list[tuple[str, int]]]:
    return [capture.main_lines for capture in rank.captures if capture.stacks]
