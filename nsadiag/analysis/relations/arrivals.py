"""Ranks that reach a call one step earlier than their peers do."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from nsadiag.analysis.relations.timeline import TimelineEvent, Timelines
from nsadiag.evidence.ring.blackbox import Kind


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A call at which only some have arrived, while the others do a step that these have not done."""

    early: tuple[int, ...]
    late: tuple[int, ...]
    to: TimelineEvent
    usual: int  # steps between two visits of that line, as it always was; 0 where there was none before
    since: int  # steps since the last visit now
    last_ns: int  # when the first of `early` was there last, 0 where it never was


def arrival(timelines: Timelines, ranks: tuple[int, ...]) -> Arrival | None:
    """The first at which they came apart; None where visits were not the same on all ranks, or irregular."""
    found = timelines.first_divergence(ranks)
    if found is None:
        return None
    for early, late, next_, other in (
        (found.guilty, found.others, found.own, found.theirs),
        (found.others, found.guilty, found.theirs, found.own),
    ):
        if next_ is None or next_.kind != Kind.COLLECTIVE or len(early) > len(late):
            continue
        # What they are at instead belongs to the next round.
        behind = other is not None or all(timelines.count(r) > found.iteration + 1 for r in late)
        rounds = _rounds_before(timelines, ranks, next_, found.iteration) if behind else None
        if rounds is not None:
            usual, since = rounds
            visit = timelines.iteration(early[0], found.iteration - since)
            last_ns = max((t.t_ns for t in visit if t.at == next_.at), default=0)
            return Arrival(early=early, late=late, to=next_, usual=usual, since=since, last_ns=last_ns)
    return None


def _rounds_before(
    timelines: Timelines, ranks: tuple[int, ...], to: TimelineEvent, iteration: int
) -> tuple[int, int] | None:
    """The number of steps between two visits of that line as it always was, 0 where it had no visit, and now.

    None where visits were not the same on all ranks, or irregular.
    """
    visits = [
        tuple(n for n in range(iteration) if any(t.at == to.at for t in timelines.iteration(rank, n)))
        for rank in ranks
    ]
    if len({*visits}) > 1 or not (visits[0] or timelines.are_whole):
        return None
    seen = visits[0]
    if not seen:
        return 0, iteration + 1
    gaps = {b - a for a, b in itertools.pairwise(seen)}
    gaps = gaps or ({seen[0] + 1} if timelines.are_whole else set())
    return (gaps.pop(), iteration - seen[-1]) if len(gaps) == 1 else None
