"""The pace of one rank: its steps in parts, its iterations, and whether it kept to their rhythm until it was last seen."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from nsadiag.analysis.facts.spans import Span
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.evidence.iterations import ANCHORS, Iterations
from nsadiag.evidence.phrases import count, seconds
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Column, Table

FEWEST = 2  # intervals behind the warm-up: of fewer, nobody knows a rhythm
WARM_UP = 2  # intervals, of a job that has made more than a few
LONGEST_PAUSES = 3.0  # longest intervals so far, after which an iteration is overdue, as for the watch
MIN_PAUSE_S = 2.0  # a busy machine makes anybody pause for a second
FELL = 3.0  # times as long as before, of late
ENOUGH = 8  # intervals, to say what was of late and what before


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Iterations of one rank. Times are seconds since the start of the job; of a ring that has wrapped, the newest."""

    rank: int
    unit: str  # "step" of an optimizer, or "iteration"
    done: int
    until_s: float  # when it was last seen
    at_s: Sequence[float] = field(repr=False, compare=False)
    silent_from_s: float = 0.0  # since when there is none, where the ring has lost all of them

    @property
    def intervals(self) -> list[float]:
        """Seconds from one iteration to the next, without those of the warm-up."""
        found = [after - before for before, after in itertools.pairwise(self.at_s)]
        return found[WARM_UP if len(found) >= FEWEST + 2 * WARM_UP else min(1, max(len(found) - FEWEST, 0)) :]

    @property
    def since_s(self) -> float:
        """Seconds since its last iteration, or as many as the ring reaches back; since the start of the job where it made none."""
        return self.until_s - (self.at_s[-1] if self.at_s else self.silent_from_s)

    @property
    def typical_s(self) -> float | None:
        """The median interval."""
        return statistics.median(self.intervals) if self.intervals else None

    @property
    def rate_per_s(self) -> float | None:
        """Iterations a second of late: in the last fifth of them, ten at least."""
        newest = self.intervals[-max(10, len(self.intervals) // 5) :]
        return 1.0 / max(statistics.median(newest), 1e-9) if newest else None

    @property
    def counted(self) -> str:
        """`12 steps`."""
        return count(self.done, self.unit)

    @property
    def unsteady(self) -> str | None:
        """The reason for which nobody may say that it progresses at its own rate; None where it does."""
        who = f"rank {self.rank}"
        if self.done == 0:
            return f"{who} completed no {self.unit} in {self.until_s:.0f} s"
        if not self.at_s:
            return f"{who} completed no {self.unit} in the last {self.since_s:.0f} s, of {self.counted}"
        gaps = self.intervals
        if len(gaps) < FEWEST:
            return f"{who} completed {self.counted} in {self.until_s:.0f} s, too few to know its rate"
        longest_s = max(gaps)
        if self.since_s > max(LONGEST_PAUSES * longest_s, MIN_PAUSE_S):
            return f"{who} completed no {self.unit} in the last {self.since_s:.0f} s, and one every {seconds(statistics.median(gaps))} before"
        recent = gaps[-max(len(gaps) // 4, 2) :]
        before = gaps[: -len(recent)]
        if len(gaps) >= ENOUGH and statistics.median(recent) > FELL * statistics.median(before):
            return f"{who} took {seconds(statistics.median(recent))} for each {self.unit} lately, and {seconds(statistics.median(before))} before"
        return None


def pace_of(cell: CellEvidence, rank: RankEvidence) -> Pace:
    """By the steps of its optimizer; without one, by the iterations of its loop."""
    steps = rank.end.steps or 0
    events = rank.recording.events
    own = events[events["kind"] == Kind.STEP]
    is_stepping = bool(steps or len(own))
    times, counted = (own["t_ns"].tolist(), len(own)) if is_stepping else _iterations(rank)
    # Who followed the job has seen all of them, also those that the ring has lost.
    told = steps if is_stepping else rank.end.iterations
    return Pace(
        rank=rank.rank,
        unit="step" if is_stepping else "iteration",
        done=int(told) if told else counted,
        until_s=seen_until_s(cell),
        at_s=_since_start_s(cell, times),
        silent_from_s=_since_start_s(cell, events["t_ns"][:1])[0] if len(events) else 0.0,
    )


def _since_start_s(cell: CellEvidence, t_ns: Iterable[int]) -> list[float]:
    return [(each - cell.started_mono_ns) / 1e9 for each in t_ns]


def seen_until_s(cell: CellEvidence) -> float:
    """The end of the observation: when nsadiag began to end the job, or last looked at it, or when it was over."""
    for told in (cell.watch.ending_s, cell.watch.ended_s):
        if told is not None:
            return told
    last = cell.watch.last_look
    return last.t_s + max((motion.seconds for motion in last.motions), default=0.0) if last else 0.0


def _iterations(rank: RankEvidence) -> tuple[list[int], int]:
    """The time at which each of its iterations began, and their number."""
    events = rank.recording.events
    events = events[events["phase"] != Phase.END]
    main = events[events["thread"] == (-1 if rank.recording.pid is None else rank.recording.pid)]
    # Where the main thread does none of it, whoever does trains.
    own = main if main["kind"].isin(ANCHORS).any() else events
    counter = Iterations(is_wrapped=bool(rank.ddp or rank.units or rank.wraps))
    pairs = zip(own["kind"], own["phase"], strict=True)
    began = [counter.take(kind, phase) is not None for kind, phase in pairs]
    told = rank.end.iterates_by
    anchor = next((kind for kind in ANCHORS if kind.name.lower() == told), counter.anchor)
    if anchor is None:
        return [], 0
    found = own["kind"] == anchor
    if counter.is_by_runs:
        found = found & Column(began)
    return own["t_ns"][found].tolist(), counter.count


class StepTimes(NamedTuple):
    """One completed step. `ready_s` is when its last gradient had arrived: from there on the rank can only wait for its peers."""

    rank: Annotated[int, "the rank that made it"]
    step: Annotated[int, "its number"]
    end_s: Annotated[float, "when it was over, in seconds since the job was started"]
    step_s: Annotated[float, "its length"]
    cpu_s: Annotated[float, "CPU time of the process in it"]
    forward_at: Annotated[float, "when its first forward began"]
    ready_s: Annotated[float, "when its last gradient had arrived"]
    # None of steps whose phases were not recorded.
    input_s: Annotated[float | None, "from its begin to the first forward"]
    forward_s: Annotated[float | None, "from the first forward to the last backward"]
    backward_s: Annotated[float | None, "from the last backward to the last gradient"]
    loader_s: Annotated[float | None, "within input_s, waits for the DataLoader"]
    saving_s: Annotated[float | None, "within input_s, saves of checkpoints"]
    computed: Annotated[bool, "whether it ran the model: under Join a rank makes the steps of others, too"]
    elements: Annotated[int | None, "given to its forwards"]


STEP_COLUMNS = [*StepTimes._fields]


def steps_of(rank: int, events: Table, spans: Sequence[Span]) -> Iterator[StepTimes]:
    """From the rank's own events, and its spans in order of time; of short steps in a row, of which the last alone is in them, one that is like their mean."""
    # In plain lists: a table of thousands of steps is cut far faster than by masks over all of it.
    events = events.sort_values("t_s")
    columns_of_end = ("a", "t_s", "b", "name")
    ends = [*zip(*(events[events.kind == Kind.STEP][column] for column in columns_of_end), strict=True)]
    fetches, files = ([s for s in spans if s.kind == kind] for kind in (Kind.DATA, Kind.IO))
    times, *columns = (events[column].tolist() for column in ("t_s", "kind", "phase", "a"))
    for (before, begin, cpu_before, _), (step, end, cpu_ns, left_out) in itertools.pairwise(ends):
        if left_out:
            steps = max(step - before, 1)
            yield _unrecorded(rank, step, end, (end - begin) / steps, (cpu_ns - cpu_before) / steps / 1e9)
            continue
        inside = slice(bisect.bisect_right(times, begin), bisect.bisect_right(times, end))
        rows = [*zip(times[inside], *(column[inside] for column in columns), strict=True)]
        # Accumulation makes several forwards of one step.
        forward = [t_s for t_s, kind, phase, _ in rows if kind == Kind.FORWARD and phase == Phase.BEGIN]
        backward = [t_s for t_s, kind, phase, _ in rows if kind == Kind.BACKWARD and phase == Phase.BEGIN]
        gradients = [t_s for t_s, kind, _, _ in rows if kind == Kind.GRADIENT]
        first_forward, last_backward = min(forward, default=begin), max(backward, default=end)
        work_ends = max(gradients, default=last_backward)
        yield StepTimes(
            rank=rank,
            step=step,
            end_s=end,
            step_s=end - begin,
            cpu_s=(cpu_ns - cpu_before) / 1e9,
            forward_at=first_forward,
            ready_s=work_ends,
            input_s=first_forward - begin,
            forward_s=last_backward - first_forward,
            backward_s=work_ends - last_backward,
            loader_s=_spent(fetches, begin, end),
            saving_s=_spent(files, begin, end),
            computed=bool(forward or backward or gradients),
            elements=sum(a for _, kind, phase, a in rows if kind == Kind.FORWARD and phase == Phase.END),
        )


def _unrecorded(rank: int, step: int, end_s: float, step_s: float, cpu_s: float) -> StepTimes:
    return StepTimes(
        rank=rank, step=step, end_s=end_s, step_s=step_s, cpu_s=cpu_s, forward_at=end_s, ready_s=end_s,
        input_s=None, forward_s=None, backward_s=None, loader_s=None, saving_s=None, computed=False, elements=None,
    )  # fmt: skip


def _spent(spans: Sequence[Span], after_s: float, until_s: float) -> float:
    """Seconds in those that began and ended in that time."""
    begun = spans[bisect.bisect_right(spans, after_s, key=_begin_s) :]
    inside = itertools.takewhile(lambda span: span.begin_s <= until_s, begun)
    return sum(s.end_s - s.begin_s for s in inside if s.end_s is not None and s.end_s <= until_s)


def _begin_s(span: Span) -> float:
    return span.begin_s
