"""Collectives in which ranks wait for each other: when each issued one, and the time that it waited for the last rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from nsadiag.analysis.facts.collectives import NO_COLLECTIVE
from nsadiag.analysis.facts.spans import Span
from nsadiag.evidence.phrases import call_name
from nsadiag.evidence.ring.blackbox import Kind

WAIT = ".wait"
SLACK_S = 0.002  # by which a rank may seem to leave before the last has come: clocks, threads
AT_LEAST_S = 1e-3  # shorter is no wait


@dataclass(frozen=True, kw_only=True)
class Participation:
    """One rank in one collective. Times in seconds; `left_s` is None while it is in it."""

    rank: int
    group: str
    call: int
    op: str
    issued_s: float  # when it issued the collective: from here on, nobody waits for this rank
    blocked_s: float  # when it began to wait for it
    left_s: float | None
    place: str

    @property
    def key(self) -> tuple[str, int]:
        """The key that all ranks that meet there share."""
        return self.group, self.call


@dataclass(frozen=True, kw_only=True)
class CompletedWait:
    """One time that a rank kept peers waiting."""

    rank: int
    for_s: float  # of the peer that waited longest
    waiters: tuple[int, ...]
    at_s: float  # when it was over
    what: str
    lost_s: float = 0.0  # by all waiters together


def participations_of(
    rank: int, spans: Iterable[Span], label: Callable[[int, str], str]
) -> list[Participation]:
    """The rank's, by when it began to wait. `label(rank, name)` is the group's.

    A wait whose call the ring has lost is none: nobody knows what it waits for.
    """
    calls: dict[tuple[str, int], Span] = {}
    found = []
    for span in spans:
        if span.kind != Kind.COLLECTIVE or NO_COLLECTIVE.search(span.detail):
            continue
        if not span.name.endswith(WAIT):
            calls[span.group, span.number] = span
        call = calls.get((span.group, span.number))
        if call is not None:
            found.append(
                Participation(
                    rank=rank,
                    group=label(rank, span.group),
                    call=span.number,
                    op=call.name,
                    issued_s=call.begin_s,
                    blocked_s=span.begin_s,
                    left_s=span.end_s,
                    place=span.place,
                )
            )
    return found


def waits_in(participations: Iterable[Participation]) -> Iterator[CompletedWait]:
    """By collective. A rank that left before the last had come, as the source of a broadcast, waited for none of those."""
    met: dict[tuple[str, int], list[Participation]] = defaultdict(list)
    for each in participations:
        met[each.key].append(each)
    for together in met.values():
        # A number may come twice from one rank, where another thread calls, or a damaged recording has it so.
        came: dict[int, float] = {}
        for each in together:
            came[each.rank] = min(each.issued_s, came.get(each.rank, each.issued_s))
        if len(came) < 2:
            continue
        waited: dict[int, list[tuple[float, int, float]]] = defaultdict(list)
        for each in together:
            if each.left_s is None:
                continue  # what is not over is for the wait-for graph
            before = {r: t for r, t in came.items() if t <= each.left_s + SLACK_S}
            # In a damaged recording it may have left before anybody came.
            last = max(before, key=before.__getitem__, default=each.rank)
            if last != each.rank and before[last] - each.blocked_s > AT_LEAST_S:
                waited[last].append((before[last] - each.blocked_s, each.rank, before[last]))
        for rank, rows in waited.items():
            longest_s, _, at_s = max(rows)
            lost_s = sum({each: waited_s for waited_s, each, _ in sorted(rows)}.values())
            who = tuple(sorted({each for _, each, _ in rows}))
            one = together[0]
            yield CompletedWait(
                rank=rank,
                for_s=longest_s,
                waiters=who,
                at_s=at_s,
                what=call_name(one.op, one.call, one.group),
                lost_s=lost_s,
            )


def longest_blocked_s(participations: Iterable[Participation]) -> float:
    """The longest that any rank stood in a collective that came to its end, whoever it was waiting for."""
    return max((s.left_s - s.blocked_s for s in participations if s.left_s is not None), default=0.0)
