"""The lanes of the timeline: the spans that each rank's recorder holds, and the calls in its flight recorder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.phrases import call_name
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table

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
READ = 6000  # newest events of one rank that are read


@dataclass(frozen=True, kw_only=True)
class Span:
    """One thing that a rank did; `end_s` is None where it had not ended."""

    kind: str  # forward, backward, optimizer, data, file, phase, call
    name: str
    start_s: float
    end_s: float | None
    step: int
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Everything that one rank did, in order of time."""

    rank: int
    spans: tuple[Span, ...]
    steps: tuple[float, ...]  # when each was completed

    @property
    def newest_s(self) -> float:
        """The newest moment that is known of it."""
        ends = (span.start_s if span.end_s is None else span.end_s for span in self.spans)
        return max([*ends, *self.steps[-1:]], default=0.0)


def lanes_of(case: Case) -> list[Lane]:
    """One lane a rank that left a recording with anything in it."""
    by_rank = {rank: events for rank, events in case.events.groupby("rank")}  # noqa: C416 (it has no keys)
    found = []
    for rank in case.cell.ranks:
        events = by_rank.get(rank.rank)
        if events is None:
            continue
        spans = [*_spans(rank, events.iloc[-READ:]), *_flight_recorder(case, rank)]
        steps = events.loc[events.kind == STEP, "t_s"].tolist()
        lane = Lane(
            rank=rank.rank,
            spans=tuple(sorted(_apart(spans), key=lambda span: span.start_s)),
            steps=tuple(s for s in steps if _is_time(s)),
        )
        if lane.spans or lane.steps:
            found.append(lane)
    return found


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and 0 <= seconds < 1e9


def _spans(rank: RankEvidence, events: Table) -> Iterator[Span]:
    """Begins and ends of one thread paired; a begin without its end stays open."""
    relevant = events[events.kind.isin([*WORK, CALL])]
    open_: dict[tuple[int, int, str, str], list[Span]] = {}
    columns = (relevant[c].tolist() for c in ("kind", "phase", "name", "t_s", "step", "thread", "site", "a"))
    main = rank.recording.pid
    for kind, phase, name, t_s, step, thread, site, number in zip(*columns, strict=True):
        key = (thread, kind, name, "")
        if not _is_time(t_s) or (kind != CALL and thread != main):
            continue
        if phase == Phase.BEGIN:
            label = f"{name} #{number}" if kind == CALL and number else name
            kind_name = WORK.get(kind, "call")
            span = Span(kind=kind_name, name=label, start_s=t_s, end_s=None, step=step, place=_short(site))
            open_.setdefault(key, []).append(span)
        elif phase == Phase.END and open_.get(key):
            begun = open_[key].pop()
            yield _ended(begun, t_s)
    for left in open_.values():
        yield from left


def _ended(span: Span, t_s: float) -> Span:
    end_s = max(t_s, span.start_s)
    return Span(
        kind=span.kind, name=span.name, start_s=span.start_s, end_s=end_s, step=span.step, place=span.place
    )


def _short(site: str) -> str:
    """`train.py:41` of the recorder's `/job/train.py:41:main`."""
    file, _, rest = site.rpartition("/")[2].partition(":")
    return f"{file}:{rest.partition(':')[0]}" if rest else file


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
            name = call_name(op, seq, group)
            yield Span(kind="call", name=name, start_s=t_s, end_s=None if pending else t_s, step=0)


def _apart(spans: list[Span]) -> list[Span]:
    """The same without what the flight recorder says again of a call that Python made."""
    made = [
        (s.start_s, math.inf if s.end_s is None else s.end_s) for s in spans if s.kind == "call" and s.place
    ]
    return [
        span
        for span in spans
        if span.kind != "call"
        or span.place
        or not any(start - 1e-3 <= span.start_s <= end + 1e-3 for start, end in made)
    ]
