"""Outliers among ranks that wait for each other in sends and receives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.outliers import Criterion, CriterionTest, Outliers, minority, outliers, which
from nsadiag.analysis.relations.messages.pairing import (
    PendingTransfer,
    calls_of,
    counts_of,
    left_out,
    left_short,
)
from nsadiag.evidence.records import Place
from nsadiag.evidence.table import Table

FEWEST_STEPS = 3  # before the hanging one, to know the usual order of messages


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The ranks of a cycle that wait in sends and receives."""

    case: Case
    waiting: Mapping[int, PendingTransfer]

    def __iter__(self) -> Iterator[int]:
        return iter(self.waiting)

    @cached_property
    def involved(self) -> frozenset[int]:
        """The waiting ranks, and those that they wait for."""
        peers = (p.peer for p in self.waiting.values() if p.peer is not None)
        return frozenset(self.waiting) | frozenset(peers)

    @cached_property
    def calls(self) -> Table:
        return calls_of(self.case)

    @cached_property
    def dangling(self) -> tuple[int, ...]:
        """Ranks whose message has no counterpart."""
        return tuple(rank for rank, p in sorted(self.waiting.items()) if p.counterpart)

    @property
    def do_alike(self) -> bool:
        """Whether all, and all that they wait for, wait at one line in one direction."""
        alike = {p.alike for p in self.waiting.values()}
        return len(self.waiting) > 1 and len(alike) == 1 and self.involved == set(self.waiting)


def message_outliers(case: Case, waiting: Mapping[int, PendingTransfer]) -> Outliers:
    """Ranks that do not do what the others do; all if there is no difference."""
    return outliers(Exchange(case=case, waiting=waiting), MESSAGES)


def _alike(e: Exchange) -> tuple[int, ...]:
    return tuple(e) if e.do_alike else ()


def _with_unusual_count(e: Exchange) -> tuple[int, ...]:
    return which(e.involved, lambda rank: _is_unusual(e.case, rank))


def _left_out(e: Exchange) -> tuple[int, ...]:
    return tuple(sorted({p.peer for p in e.waiting.values() if p.peer is not None and left_out(e.case, p)}))


def _gone_on(e: Exchange) -> tuple[int, ...]:
    """The rank for which several wait in vain and which is in no transfer itself: it left first."""
    missed = [p.peer for p in e.waiting.values() if p.counterpart and p.peer not in e.waiting]
    peer = missed[0] if len(missed) > 1 and len(set(missed)) == 1 else None
    at = e.case.thread_states.get(peer) if peer is not None else None
    return (peer,) if peer is not None and at is not None and at.doing != "transfer" else ()


def _elsewhere(e: Exchange) -> tuple[int, ...]:
    return minority({rank: p.alike for rank, p in e.waiting.items()}) if len(e.waiting) > 2 else ()


def _unmatched(e: Exchange) -> tuple[int, ...]:
    return e.dangling if len(e.dangling) == 1 else ()


def _with_absent_peer(e: Exchange) -> tuple[int, ...]:
    return which(e, lambda rank: rank in e.dangling and e.waiting[rank].peer not in e.waiting)


def _with_rare_tag(e: Exchange) -> tuple[int, ...]:
    odd = minority(_tags_at(e.calls, e.waiting[min(e)].place))
    return odd if set(odd) <= set(e) else ()


def _at_own_line(e: Exchange) -> tuple[int, ...]:
    """Only after several rounds at other lines: somebody is always the first to come to a line."""

    def is_own(rank: int) -> bool:
        at, places = e.waiting[rank].place, e.calls.place[e.calls["rank"] == rank].tolist()
        if at is None or set(_tags_at(e.calls, at)) != {rank}:
            return False
        before = places[: next(n for n, text in enumerate(places) if _is_at(text, at))]
        return len(before) > FEWEST_STEPS * len(set(before))

    return which(e, is_own)


MESSAGES: tuple[CriterionTest[Exchange], ...] = (
    (Criterion.UNUSUAL_COUNT, _with_unusual_count),
    (Criterion.ALIKE, _alike),
    (Criterion.LEFT_OUT, _left_out),
    (Criterion.GONE_ON, _gone_on),
    (Criterion.ELSEWHERE, _elsewhere),
    (Criterion.UNMATCHED, _unmatched),
    (Criterion.ABSENT_PEER, _with_absent_peer),
    (Criterion.RARE_TAG, _with_rare_tag),
    (Criterion.OWN_LINE, _at_own_line),
)


def _is_unusual(case: Case, rank: int) -> bool:
    """Whether this step's messages differ from those of every earlier step, apart from those that may still come."""
    counts = counts_of(case, rank)
    *before, now = _orders(calls_of(case), rank) or [()]
    # A step that began like an earlier one may continue like it, also in a loop that it is still in.
    if len(counts.by_step) < 2 or any(each[: len(now)] == now for each in before):
        return False
    more = any(number > max(counts.before(key)) for key, number in counts.now.items())
    return more or left_short(case, rank)


def _orders(calls: Table, rank: int) -> list[tuple[tuple[str, int, str], ...]]:
    """The messages of each step, in order."""
    mine = calls[calls["rank"] == rank]
    return [
        tuple(zip(rows.direction, rows.peer, rows.place, strict=True)) for _, rows in mine.groupby("step")
    ]


def _tags_at(calls: Table, at: Place | None) -> dict[int, int]:
    """By rank, the tag of its newest message from that line."""
    here = calls[[at is not None and _is_at(text, at) for text in calls.place]]
    return {int(str(rank)): int(frame.iloc[-1].tag) for rank, frame in here.groupby("rank")}


def _is_at(text: str, place: Place) -> bool:
    found = locations.of_text(str(text))
    return found is not None and (found.file, found.line) == (place.file, place.line)
