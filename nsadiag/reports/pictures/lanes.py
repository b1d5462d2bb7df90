"""The lanes of the timeline: the spans that each rank's recorder holds, and the calls in its flight recorder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.spans import Span
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.ring.blackbox import Kind

WORK = {
    int(Kind.FORWARD): "forward",
    int(Kind.BACKWARD): "backward",
    int(Kind.OPTIMIZER): "optimizer",
    int(Kind.DATA): "data",
    int(Kind.IO): "file",
    int(Kind.PHASE): "phase",
}
CALL = int(Kind.COLLECTIVE)
STEP = int(Kind.STEP)
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
    for span in case.spans(rank, *WORK, CALL)[-NEWEST:]:
        if _is_time(span.begin_s) and (span.kind == CALL or span.thread == rank.recording.pid):
            is_possible = span.end_s is None or (span.begin_s <= span.end_s and _is_time(span.end_s))
            yield span if is_possible else span._replace(end_s=span.begin_s)


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
    """The same without what the flight recorder says again of a call that Python made."""
    made = [
        (s.begin_s, math.inf if s.end_s is None else s.end_s) for s in spans if s.kind == CALL and s.place
    ]
    return [
        span
        for span in spans
        if span.kind != CALL
        or span.place
        or not any(begin - 1e-3 <= span.begin_s <= end + 1e-3 for begin, end in made)
    ]
