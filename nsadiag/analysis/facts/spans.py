"""Spans: what each thread of a rank did from when to when, by its recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nsadiag.evidence.ring.reader import Recording
from nsadiag.evidence.ring.spans import spans_in


class Span(NamedTuple):
    """One thing that a thread began, and when it was over."""

    rank: int
    thread: int
    kind: int  # evidence.ring.blackbox.Kind
    name: str
    group: str  # of a call, as the rank names it
    number: int  # of a call, counted by the rank in its group; what else it is, Kind says
    begin_s: float
    end_s: float | None  # missing while the thread is in it
    place: str  # file:line:function
    detail: str
    step: int
    elements: int  # of a call, that it was given


def spans_of(rank: int, recording: Recording, seconds: Callable[[int], float], *kinds: int) -> list[Span]:
    """The rank's of these kinds, by when they began; `seconds` of a time of its clock."""
    events = recording.events[recording.events["kind"].isin(kinds)]
    ends, times = spans_in(events), events["t_ns"]
    begun = recording.decode(events.take(ends))
    return [
        Span(
            rank=rank,
            thread=event.thread,
            kind=event.kind,
            name=event.name,
            group=event.group,
            number=event.a,
            begin_s=seconds(event.t_ns),
            end_s=None if end is None else seconds(times[end]),
            place=event.site,
            detail=event.detail,
            step=event.step,
            elements=event.b,
        )
        for event, end in zip(begun, ends.values(), strict=True)
    ]
