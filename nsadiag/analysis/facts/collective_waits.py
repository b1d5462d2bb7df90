"""Collectives in which ranks wait for each other: when each issued one, and the time that it waited for the last rank."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from nsadiag.evidence.phrases import call_name
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.reader import Event, Recording

WAIT = ".wait"
NOT_COLLECTIVE = re.compile(r"^(?:to|from|key)=")  # sends, receives and the store


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
class Wait:
    """One time that a rank kept peers waiting."""

    rank: int
    for_s: float  # of the peer that waited longest
    waiters: tuple[int, ...]
    at_s: float  # when it was over
    what: str


def participations_of(
    rank: int, recording: Recording, seconds: Callable[[int], float], label: Callable[[int, str], str]
) -> list[Participation]:
    """The rank's, by when they were over. `seconds` of a time of its clock; `label(rank, name)` is the group's.

    A wait whose call the ring has lost is none: nobody knows what it waits for.
    """
    events = recording.events
    mine = recording.decode(events[events["kind"] == Kind.COLLECTIVE])
    came: dict[tuple[str, int], Event] = {}
    found = []
    for begun, ended in _paired(event for event in mine if not NOT_COLLECTIVE.match(event.detail)):
        if not begun.name.endswith(WAIT):
            came[begun.group, begun.a] = begun
        call = came.get((begun.group, begun.a))
        if call is not None:
            found.append(
                Participation(
                    rank=rank,
                    group=label(rank, begun.group),
                    call=begun.a,
                    op=call.name,
                    issued_s=seconds(call.t_ns),
                    blocked_s=seconds(begun.t_ns),
                    left_s=None if ended is None else seconds(ended.t_ns),
                    place=begun.site,
                )
            )
    return found


def _paired(events: Iterable[Event]) -> Iterator[tuple[Event, Event | None]]:
    """Begins and their ends; those without an end come last."""
    open_: dict[tuple[str, int, str, int], Event] = {}
    for event in events:
        key = event.group, event.a, event.name, event.thread
        if event.phase == Phase.BEGIN:
            open_[key] = event
        elif key in open_:
            yield open_.pop(key), event
    yield from ((begun, None) for begun in open_.values())


def waits_in(participations: Iterable[Participation]) -> Iterator[Wait]:
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
            who = tuple(sorted({each for _, each, _ in rows}))
            one = together[0]
            yield Wait(
                rank=rank,
                for_s=longest_s,
                waiters=who,
                at_s=at_s,
                what=call_name(one.op, one.call, one.group),
            )


def longest_blocked_s(participations: Iterable[Participation]) -> float:
    """The longest that any rank stood in a collective that came to its end, whoever it was waiting for."""
    return max((s.left_s - s.blocked_s for s in participations if s.left_s is not None), default=0.0)
