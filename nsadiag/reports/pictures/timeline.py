"""The timeline: a lane a rank, or a kind of rank where there are many, over bands of time; where each stopped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.spans import Span
from nsadiag.evidence.phrases import call_name, count
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.spans import spans as ranks_as_spans
from nsadiag.reports.pictures.axis import Axis, axis_of
from nsadiag.reports.pictures.lanes import CALL, WORK, Lane, lanes_of
from nsadiag.reports.pictures.rows import ROWS
from nsadiag.reports.pictures.standing import ended_at_s, role, standing
from nsadiag.reports.words import duration

MOST_LANES = 32
GUILTY_LANES = 8
MOST_MARKS = 2400  # in all lanes together: what keeps the page small
FAILED = {"hung": "no progress", "crashed": "after the failure"}  # the name of what follows
RECENT_STEPS, RECENT_CALLS = 6, 30
TICKS = 120  # of earlier steps, a lane
# Classes that say how ranks diverged; elsewhere ranks may differ by design, as stages of a pipeline do.
DIVERGED = frozenset(
    {
        "rank_conditional_collective", "data_divergent_control_flow", "uneven_inputs", "divergent_module_execution",
        "collective_order_mismatch", "collective_args_mismatch", "grad_sync_mismatch", "missing_rank",
    }
)  # fmt: skip
NAMED = ("call", "file", "phase")  # kinds whose spans have a name that is worth saying
NAMES = {
    "peers": "waits for peers",
    "data": "waits for a batch",
    "file": "reads or writes a file",
    "call": "",
    "phase": "phase",
}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One span as drawn."""

    kind: str
    x: float
    width: float
    text: str
    is_open: bool

    @property
    def y(self) -> int:
        return ROWS[self.kind][0]

    @property
    def height(self) -> int:
        return ROWS[self.kind][1]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One lane as drawn: the rank, or the ranks that it stands for."""

    name: str
    role: str
    marks: tuple[Mark, ...]
    ticks: tuple[float, ...]  # completed steps
    standing: str
    stopped: float | None  # the place of its last event, of a rank that did not finish
    divergence: tuple[float, str] | None = None
    end: str = ""  # of a rank that ended by itself

    @property
    def description(self) -> str:
        """For those who cannot see the lane."""
        steps = f"{count(len(self.ticks), 'step')} shown"
        return ", ".join(part for part in (self.name, self.role, steps, self.standing) if part)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of the whole job."""

    x: float
    text: str
    kind: str  # snapshot, verdict


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The picture."""

    axis: Axis
    rows: tuple[Row, ...]
    moments: tuple[Moment, ...]
    kinds: tuple[str, ...]  # that occur, for the legend
    divergence: str = ""
    left_out: int = 0  # lanes

    @property
    def has_open(self) -> bool:
        return any(mark.is_open for row in self.rows for mark in row.marks)

    @property
    def has_stops(self) -> bool:
        return any(row.stopped is not None for row in self.rows)

    @property
    def is_dense(self) -> bool:
        return len(self.rows) > 8


def timeline_of(case: Case, verdict: Verdict | None) -> Timeline | None:
    """None where no recorder holds anything."""
    lanes = lanes_of(case)
    if not lanes:
        return None
    shown = _chosen(case, lanes, verdict)
    axis = _axis(case, [lane for lane, _ in shown], verdict)
    text, places = _divergence(case, verdict)
    rows = [_row(case, lane, ranks, axis, verdict, places, len(shown)) for lane, ranks in shown[:MOST_LANES]]
    kinds = {mark.kind for row in rows for mark in row.marks}
    return Timeline(
        axis=axis,
        rows=tuple(rows),
        moments=tuple(_moments(case, axis, verdict)),
        kinds=tuple(kind for kind in ROWS if kind in kinds),
        divergence=text,
        left_out=max(len(shown) - MOST_LANES, 0),
    )


def _chosen(case: Case, lanes: Sequence[Lane], verdict: Verdict | None) -> list[tuple[Lane, tuple[int, ...]]]:
    """Lanes with the ranks that each stands for: all of few; of many the guilty ones, and one of each kind."""
    everyone = {rank for kind in case.cell.kinds for rank in kind} | {lane.rank for lane in lanes}
    if len(everyone) <= MOST_LANES:
        return [(lane, (lane.rank,)) for lane in lanes]
    guilty = [lane for lane in lanes if role(verdict, lane.rank) == "guilty"][:GUILTY_LANES]
    alike: dict[tuple[str, str], list[Lane]] = {}
    for lane in lanes:
        if lane not in guilty:
            said = standing(case, case.cell.rank(lane.rank))
            alike.setdefault((role(verdict, lane.rank), said), []).append(lane)
    named = {lane.rank for lane in guilty}
    kinds = []
    for group in sorted(alike.values(), key=len):
        ranks = case.cell.everyone((lane.rank for lane in group), but=named)
        kinds.append((group[0], ranks))
    return [*((lane, (lane.rank,)) for lane in guilty), *kinds]


def _axis(case: Case, lanes: Sequence[Lane], verdict: Verdict | None) -> Axis:
    first = min((span.begin_s for lane in lanes for span in lane.spans), default=0.0)
    first = min([first, *(lane.steps[0] for lane in lanes if lane.steps)])
    newest = max(lane.newest_s for lane in lanes)
    watch = case.cell.watch
    if watch.ending_s is not None:
        newest = max(min(newest, watch.ending_s), first)
    ends = [rank.end.t_s for rank in case.cell.ranks if rank.end.t_s is not None]
    looks = [look.t_s for look in watch.looks]
    over = watch.ending_s or max([newest, *ends, *looks[-1:]])
    outcome = verdict.outcome if verdict else ""
    onset = verdict.times.onset_s if verdict else None
    stopped = min(onset, newest) if onset is not None and onset > first else newest
    if outcome == "crashed":
        failed = [lane.newest_s for lane in lanes if role(verdict, lane.rank) == "guilty"]
        stopped = max(min(failed, default=stopped), first)
    if outcome not in FAILED and any(span.end_s is None for lane in lanes for span in lane.spans):
        stopped = over  # it is still at it
    recent = _recent_from(lanes, stopped)
    labels = {"recent": "work", "after": FAILED.get(outcome, "end")}
    begin = 0.0 if watch.started_mono_ns else first
    if recent <= first:
        return axis_of({"start-up": first, "recent": stopped, "after": over}, labels, begin)
    labels |= {"earlier": "earlier steps", "recent": "last steps"}
    return axis_of({"start-up": first, "earlier": recent, "recent": stopped, "after": over}, labels, begin)


def _recent_from(lanes: Sequence[Lane], stopped: float) -> float:
    """The moment from which on every mark is drawn: some steps or calls before the end, and not too many marks."""
    per_lane = MOST_MARKS // max(min(len(lanes), MOST_LANES), 1)
    candidates, least = [], 0.0
    for lane in lanes:
        before = [t for t in lane.steps if t <= stopped]
        starts = [span.begin_s for span in lane.spans if span.begin_s <= stopped]
        calls = [s.begin_s for s in lane.spans if s.kind == CALL and s.begin_s <= stopped]
        if len(before) > RECENT_STEPS:
            candidates.append(before[-RECENT_STEPS - 1])
        elif not before and len(calls) > RECENT_CALLS:
            candidates.append(calls[-RECENT_CALLS])
        if len(starts) > per_lane:
            least = max(least, starts[-per_lane])
    return max(min(candidates, default=0.0), least)


def _row(
    case: Case,
    lane: Lane,
    ranks: tuple[int, ...],
    axis: Axis,
    verdict: Verdict | None,
    divergence: dict[int, tuple[float, str]],
    of: int,
) -> Row:
    rank = case.cell.rank(lane.rank)
    end = rank.end.t_s if rank.end.ended_itself else None
    over = axis.bands[-1].end_s if axis.bands else lane.newest_s
    until = min(end, over) if end is not None else over
    recent = next((band.start_s for band in axis.bands if band.name == "recent"), 0.0)
    drawn = [span for span in lane.spans if span.end_s is None or span.end_s >= recent]
    marks = [_mark(span, axis, until) for span in drawn[-(MOST_MARKS // min(of, MOST_LANES)) :]]
    said, ended = standing(case, rank), ended_at_s(case, rank)
    unfinished = said != "finished" and bool(said)
    last = max((s.begin_s if s.end_s is None else s.end_s for s in lane.spans), default=None)
    diverged = divergence.get(lane.rank)
    name = f"rank {lane.rank}" if len(ranks) == 1 else f"ranks {ranks_as_spans(ranks)} ({len(ranks)})"
    return Row(
        name=name,
        role=role(verdict, lane.rank),
        marks=tuple(marks),
        ticks=tuple(_thinned([axis.x(t) for t in lane.steps])),
        standing=said,
        stopped=axis.x(min(last, over)) if unfinished and last is not None else None,
        divergence=(axis.x(diverged[0]), diverged[1]) if diverged else None,
        end=f"after {duration(ended)}" if ended is not None else "",
    )


def _mark(span: Span, axis: Axis, until: float) -> Mark:
    is_open, kind = span.end_s is None, WORK.get(span.kind, "call")
    end = until if span.end_s is None else min(span.end_s, until)
    left = axis.x(span.begin_s)
    for_s = f"not over after {duration(end - span.begin_s)}" if is_open else duration(end - span.begin_s)
    what = NAMES.get(kind, kind)
    parts = (
        " ".join(dict.fromkeys([*what.split(), *([_name(span)] if kind in NAMED else [])])),
        f"step {span.step}" if span.step else "",
        for_s if span.end_s != span.begin_s else "",
        _short(span.place),
    )
    width = max(axis.x(end) - left, 0.6)
    return Mark(kind=kind, x=left, width=width, text=", ".join(p for p in parts if p), is_open=is_open)


def _name(span: Span) -> str:
    """Its own name; of a call with the number that it has in its group."""
    if span.kind != CALL:
        return span.name
    # The flight recorder says no line, but the group by its label.
    return call_name(span.name, span.number or None, "" if span.place else span.group)


def _short(site: str) -> str:
    """`train.py:41` of the recorder's `/job/train.py:41:main`."""
    file, _, rest = site.rpartition("/")[2].partition(":")
    return f"{file}:{rest.partition(':')[0]}" if rest else file


def _thinned(places: list[float]) -> Iterable[float]:
    """No more ticks than can be seen."""
    every = max(1, -(-len(places) // TICKS))
    early = places[:-RECENT_STEPS:every] if len(places) > TICKS else places[:-RECENT_STEPS]
    return [*early, *places[-RECENT_STEPS:]]


def _moments(case: Case, axis: Axis, verdict: Verdict | None) -> Iterable[Moment]:
    for number, look in enumerate(case.cell.watch.looks[-12:], start=1):
        text = f"snapshot {number} at {duration(look.t_s)}: {look.judgement}"
        yield Moment(x=axis.x(look.t_s), text=text, kind="snapshot")


def _divergence(case: Case, verdict: Verdict | None) -> tuple[str, dict[int, tuple[float, str]]]:
    """In words, and the moment and line of each rank's own way; nothing of a job that did not fail."""
    if verdict is None or verdict.cls not in DIVERGED or len(case.cell.ranks) < 2:
        return "", {}
    found = Context(case).divergence
    if found is None or not set(found.guilty) & set(verdict.guilty_ranks):
        return "", {}
    places: dict[int, tuple[float, str]] = {}
    said = []
    for ranks, event in ((found.guilty, found.own), (found.others, found.theirs)):
        name = (event.name or Kind(event.kind).name.lower()) if event else "nothing more"
        what = f"{name} at {locations.short(event.place)}" if event and event.place else name
        who = f"rank{'s' if len(ranks) > 1 else ''} {case.cell.names(ranks)}"
        said.append(f"{who}: {what}")
        if event:
            t_s = (event.t_ns - case.cell.started_mono_ns) / 1e9
            places |= dict.fromkeys(ranks, (t_s, f"{who} diverged here: {what}"))
    return f"First divergence, in step {found.anchor.step + 1}: {'; '.join(said)}.", places
