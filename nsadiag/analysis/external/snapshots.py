"""Snapshots of each rank that other tools took, and whether it moved between them."""

from __future__ import annotations

from collections.abc import Iterable

from nsadiag.analysis.records import Movement, RankEvidence

APART_S = 2.0  # ranks of a job that runs well may be so far apart


def movement_of(ranks: Iterable[RankEvidence], pending_s: float | None) -> Movement:
    """`same` where each rank with a stack stood at the same lines twice; of dumps alone their age decides."""
    seen = [lines for rank in ranks if (lines := _lines(rank))]
    if not seen:
        return "young" if pending_s is not None and pending_s < APART_S else "unknown"
    twice = [lines[-2:] for lines in seen if len(lines) > 1]
    if any(before != after for before, after in twice):
        return "moved"
    return "same" if len(twice) == len(seen) else "one"


def _lines(rank: RankEvidence) -> list[list[tuple[str, int]]]:
    return [capture.main_lines for capture in rank.captures if capture.stacks]
