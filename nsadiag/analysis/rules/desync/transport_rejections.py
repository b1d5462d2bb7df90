"""Calls that a transport rejected, with each rank's call there, counted from the last common one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from nsadiag.analysis.facts.exits import breaks, says_mismatch
from nsadiag.analysis.outliers import minority
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.relations.timeline import COMPARED, TimelineEvent, Timelines

Key = tuple[int, str, str]


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A message that a rank did not expect, in a call that other ranks did not make at that point."""

    rank: int
    calls: dict[int, TimelineEvent]
    guilty: tuple[int, ...]  # all if undecided


def rejection(cell: CellEvidence) -> Rejection | None:
    """The rejection; None if no rank reported one, or if the reporting rank's call was the same as the others'."""
    said = next((b.rank.rank for b in breaks(cell) if says_mismatch(b.rank)), None)
    timelines = Timelines(cell.ranks)
    done = {
        rank: [t for iteration in its for t in iteration if t.kind in COMPARED]
        for rank, its in timelines.iterations_of_all.items()
    }
    if said is None or not done.get(said):
        return None
    # The rank that reported it made no call afterwards.
    last = len(done[said]) - 1
    calls = {rank: events[last] for rank, events in done.items() if len(events) > last}
    before = {tuple(_key(t) for t in done[rank][:last]) for rank in calls}
    if len(before) > 1 or len({_key(t) for t in calls.values()}) < 2:
        return None
    few = minority({rank: _key(t) for rank, t in calls.items()}, cell.weight)
    turned = tuple(rank for rank in sorted(calls) if _is_new(done[rank][: last + 1]))
    return Rejection(rank=said, calls=calls, guilty=few or turned or tuple(sorted(calls)))


def _key(event: TimelineEvent) -> Key:
    return event.kind, event.name, event.at


def _is_new(events: list[TimelineEvent]) -> bool:
    """Whether the rank never made that call after the preceding one before."""
    turns = list(itertools.pairwise(map(_key, events)))
    return len(turns) > 1 and turns.count(turns[-1]) == 1
