"""Collectives as meetings of ranks: arrival times, and the time that each rank waited for the last one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.reader import Event, Recording

WAIT = ".wait"
NO_MEETING = re.compile(r"^(?:to|from|key)=")  # sends, receives and the store


SLACK_S = 0.002  # by which a rank may seem to leave before the last has come: clocks, threads
AT_LEAST_S = 1e-3  # shorter is no wait


@dataclass(frozen=True, kw_only=True)
class Stay:
    """One rank in one collective. Times in seconds; `left_s` is None while it is in it."""

    rank: int
    group: str
    call: int
    op: str
    came_s: float  # when it issued the collective: from here on, nobody waits for this rank
    stood_s: float  # when it began to wait for it
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


def stays_of(
    rank: int, recording: Recording, seconds: Callable[[int], float], label: Callable[[int, str], str]
) -> list[Stay]:
    """The rank's, by when they were over. `seconds` of a time of its clock; `label(rank, name)` is the group's.

    A wait whose call the ring has lost is none: nobody knows what it waits for.
    """
    events = recording.events
    mine = recording.decode(events[events["kind"] == Kind.COLLECTIVE])
    came: dict[tuple[str, int], Event] = {}
    found = []
    for begun, ended in _paired(event for event in mine if not NO_MEETING.match(event.detail)):
        if not begun.name.endswith(WAIT):
            came[begun.group, begun.a] = begun
        call = came.get((begun.group, begun.a))
        if call is not None:
            found.append(
                Stay(
                    rank=rank,
                    group=label(rank, begun.group),
                    call=begun.a,
                    op=call.name,
                    came_s=seconds(call.t_ns),
                    stood_s=seconds(begun.t_ns),
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


def waits_in(stays: Iterable[Stay]) -> Iterator[Wait]:
    """By collective. A rank that left before the last had come, as the source of a broadcast, waited for none of those."""
    met: dict[tuple[str, int], list[Stay]] = defaultdict(list)
    for stay in stays:
        met[stay.key].append(stay)
    for together in met.values():
        came = {stay.rank: stay.came_s for stay in together}
        if len(came) < 2:
            continue
        waited: dict[int, list[tuple[float, int, float]]] = defaultdict(list)
        for stay in together:
            if stay.left_s is None:
                continue  # what is not over is for the wait-for graph
            before = {r: t for r, t in came.items() if t <= stay.left_s + SLACK_S}
            last = max(before, key=before.__getitem__)
            if last != stay.rank and before[last] - stay.stood_s > AT_LEAST_S:
                waited[last].append((before[last] - stay.stood_s, stay.rank, before[last]))
        for rank, rows in waited.items():
            longest_s, _, at_s = max(rows)
            who = tuple(sorted({each for _, each, _ in rows}))
            one = together[0]
            yield Wait(
                rank=rank, for_s=longest_s, waiters=who, at_s=at_s, what=f"{one.op} {one.call} of {one.group}"
            )


def stood_longest_s(stays: Iterable[Stay]) -> float:
    """The longest that any rank stood in a collective that came to its end, whoever it was waiting for."""
    return max((s.left_s - s.stood_s for s in stays if s.left_s is not None), default=0.0)
