"""The lanes of the timeline: the spans that each rank's recorder holds, and the calls in its flight recorder."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.collective_waits import WAIT
from nsadiag.analysis.facts.spans import Span
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.ring.blackbox import Kind

PEERS = -1  # the end of a backward that reduces gradients, after the rank's own last one: no kind of event
WORK = {
    PEERS: "peers",
    int(Kind.FORWARD): "forward",
    int(Kind.BACKWARD): "backward",
    int(Kind.OPTIMIZER): "optimizer",
    int(Kind.DATA): "data",
    int(Kind.IO): "file",
    int(Kind.PHASE): "phase",
}
CALL = int(Kind.COLLECTIVE)
STEP = int(Kind.STEP)
SLACK_S = 1e-3  # between the clocks of the two recorders
NEWEST = 3000  # spans of one rank that are shown


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Everything that one rank did, in order of time."""

    rank: int
    spans: tuple[Span, ...]
    steps: tuple[float, ...]  # when each was completed

    @property
    def newest_s(self) -> float:
        """The newest moment that is known of it."""
        ends = (span.begin_s if span.end_s is None else span.end_s for span in self.spans)
        return max([*ends, *self.steps[-1:]], default=0.0)


def lanes_of(case: Case) -> list[Lane]:
    """One lane a rank that left a recording with anything in it."""
    found = []
    for rank in case.cell.ranks:
        spans = [*_recorded(case, rank), *_flight_recorder(case, rank)]
        lane = Lane(
            rank=rank.rank,
            spans=tuple(sorted(_apart(spans), key=lambda span: span.begin_s)),
            steps=tuple(filter(_is_time, case.events_of(rank.rank, STEP)["t_s"])),
        )
        if lane.spans or lane.steps:
            found.append(lane)
    return found


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds < 1e9


def _recorded(case: Case, rank: RankEvidence) -> Iterator[Span]:
    """The newest of the main thread's spans, and of all threads' calls; of an end that cannot be, the begin alone."""
    reduces = case.cell.world_size > 1 and bool(rank.ddp or rank.units)
    gradients = sorted(case.events_of(rank.rank, Kind.GRADIENT)["t_s"]) if reduces else []
    for span in case.spans(rank, *(kind for kind in WORK if kind != PEERS), CALL)[-NEWEST:]:
        if _is_time(span.begin_s) and (span.kind == CALL or span.thread == rank.recording.pid):
            is_possible = span.end_s is None or (span.begin_s <= span.end_s and _is_time(span.end_s))
            yield from _in_two(span if is_possible else span._replace(end_s=span.begin_s), gradients)


def _in_two(span: Span, gradients: list[float]) -> Iterator[Span]:
    """A backward, and the wait for peers that ends it, as `time_parts` has them; of one that is not over nobody knows whether it waits."""
    last = -1 if span.end_s is None else bisect.bisect_right(gradients, span.end_s) - 1
    if (
        span.kind != Kind.BACKWARD
        or last < 0
        or gradients[last] <= span.begin_s
        or gradients[last] == span.end_s
    ):
        yield span
        return
    yield span._replace(end_s=gradients[last])
    yield span._replace(kind=PEERS, begin_s=gradients[last])


def _flight_recorder(case: Case, rank: RankEvidence) -> Iterator[Span]:
    """Calls that C++ made, as DDP's reducer does: when each was issued, and whether it is over."""
    header = rank.recording.header
    calls = case.calls[case.calls["rank"] == rank.rank] if len(case.calls) else case.calls
    if header is None or calls.empty:
        return
    offset_ns = header.monotonic_ns - header.wall_ns - case.cell.started_mono_ns
    for op, group, seq, pending, wall_ns in calls[["op", "group", "seq", "pending", "wall_ns"]].itertuples():
        t_s = (int(wall_ns) + offset_ns) / 1e9
        if _is_time(t_s):
            yield Span(
                rank=rank.rank,
                thread=0,
                kind=CALL,
                name=op,
                group=group,
                number=seq,
                begin_s=t_s,
                end_s=None if pending else t_s,
                place="",
                detail="",
                step=0,
                elements=0,
            )


def _apart(spans: list[Span]) -> list[Span]:
    """The same with each call once: the flight recorder says again what Python made.

    Its number is the one that a verdict names, as it counts the calls of C++, too: a call of Python's that it has lost has none.
    """
    made = [span for span in spans if span.kind == CALL and span.place]
    issued = sorted(
        (span for span in spans if span.kind == CALL and not span.place), key=lambda span: span.begin_s
    )
    if not made or not issued:
        return spans
    numbers: dict[tuple[str, int], int] = {}
    said_again: set[int] = set()
    for span in made:
        end_s = math.inf if span.end_s is None else span.end_s
        first = bisect.bisect_left(issued, span.begin_s - SLACK_S, key=lambda each: each.begin_s)
        last = bisect.bisect_right(issued, end_s + SLACK_S, key=lambda each: each.begin_s)
        said_again.update(map(id, issued[first:last]))
        if first < last and not span.name.endswith(WAIT):
            numbers[span.group, span.number] = issued[first].number
    known = {id(span): numbers.get((span.group, span.number), 0) for span in made}
    return [
        span._replace(number=known[id(span)]) if id(span) in known else span
        for span in spans
        if id(span) not in said_again
    ]
