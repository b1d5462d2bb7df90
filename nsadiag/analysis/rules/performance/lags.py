"""Lags: in which steps a rank is the last to be ready, by how much, in which part of the step, and whether its peers wait for it."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.trend import MIN_STEPS as MIN_GROWING
from nsadiag.analysis.relations.trend import grows
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Column, Table

PARTS = ("input_s", "forward_s", "backward_s")  # of a step
ALWAYS = 0.8  # share of the steps in which an observation has to hold
BY_LOADING = 0.5  # share of the lag
FIRST_COLUMNS = ["rank", "step", "call", "met_at", "left_at"]
MIN_STEPS = 5
SHARE_OF_STEP = 0.3  # of the step, lost by the waiting peers
MOST_OF_STEP = 0.5
MIN_LAG_S = 0.02  # below this, scheduling noise on a shared machine looks the same
MIN_LOST_S = 0.5  # total wait of the peers: a few uneven steps make no straggler
SLACK = 0.1  # of a step: tolerance for clocks and threads
# The point at which ranks first synchronize: FSDP in forward, DDP when the last gradient has arrived.
MEETINGS = {"ready_s": "have its gradients", "forward_at": "begin its forward"}
FIRST_MET = "enter the collective that opens the step"


Times = dict[int, dict[int, float]]  # by step and rank, in seconds


@dataclass(frozen=True, kw_only=True)
class Late:
    """The straggler, and its lag."""

    rank: int
    lag_s: float
    share: float  # of the steps
    last_to: str
    part: str | None = None  # column of the step's part, where the lag alone determines it
    lags: Times = field(compare=False, repr=False)  # as `lags_of` gives them


def alike(steps: Table) -> Table:
    """The steps in which either all ranks or none ran their model.

    Under Join, a rank without data joins the collectives of the others: it waits, and no rank is late.
    """
    kinds = steps.groupby("step").computed.transform("nunique")
    return steps[kinds == 1]


def _by_step(steps: Table, column: str) -> Times:
    """That time of each rank in each step after the warm-up that all ranks made."""
    found = _all_steps(steps, column)
    everybody = {rank for times in found.values() for rank in times}
    whole = {step: times for step, times in found.items() if len(times) == len(everybody)}
    warm_up = min(3, max(whole, default=0) // 3)
    return {step: times for step, times in whole.items() if step > warm_up}


def _all_steps(steps: Table, column: str) -> Times:
    found: Times = {}
    for (step, rank), times in steps.groupby(["step", "rank"])[column].mean().items():
        if not math.isnan(times):
            found.setdefault(step, {})[rank] = times
    return found


def lags_of(steps: Table, column: str) -> Times:
    """For each step and rank, the seconds after the first rank.

    Durations on one rank mislead: where ranks wait for the slow one (in backward, in `.item()`) differs by backend.
    The order in which they become ready does not.
    """
    ready = _by_step(steps, column)
    return {
        step: {rank: t_s - min(times.values()) for rank, t_s in times.items()}
        for step, times in ready.items()
    }


def typical(lags: Times) -> dict[int, float]:
    """The median of each rank."""
    by_rank = defaultdict[int, list[float]](list)
    for times in lags.values():
        for rank, lag_s in times.items():
            by_rank[rank].append(lag_s)
    return {rank: statistics.median(by_rank[rank]) for rank in sorted(by_rank)}


def last_of(times: Mapping[int, float]) -> int:
    """The rank with the largest; of several, the first."""
    return max(sorted(times), key=lambda rank: times[rank])


def latest(steps: Table, column: str) -> Late | None:
    lags = lags_of(steps, column)
    if len(lags) < MIN_STEPS:
        return None
    medians = typical(lags)
    slowest = last_of(medians)
    lag, share = medians[slowest], sum(last_of(times) == slowest for times in lags.values()) / len(lags)
    step_s = steps[steps["rank"] == slowest].step_s.median()
    if lag < max(MIN_LAG_S, SHARE_OF_STEP * step_s) or share < ALWAYS or lag * len(lags) < MIN_LOST_S:
        return None
    part = "input_s" if column in ("forward_at", "met_at") else None
    last_to = MEETINGS.get(column, FIRST_MET)
    return Late(rank=slowest, lag_s=lag, share=share, last_to=last_to, part=part, lags=lags)


def meet(steps: Table, column: str, slowest: int) -> bool:
    """Whether the early ranks wait for that rank: none of them ends a step before it is ready for the step.

    In most steps, or repeatedly, if they synchronize every few steps. Ranks that train independently, or have made
    other numbers of steps (under Join), are not waiting for it.
    """
    ready, ends = _by_step(steps, column), _all_steps(steps, "end_s")
    own = [times[slowest] for times in ready.values()]
    slack_s = SLACK * Column(after - before for before, after in itertools.pairwise(own)).median()
    together = []
    for step, times in ready.items():
        first = min((t_s for rank, t_s in ends[step].items() if rank != slowest), default=math.nan)
        together.append(first >= times[slowest] - slack_s)
    again = sum(now and not before for before, now in itertools.pairwise([True, *together]))
    return bool(together) and (sum(together) / len(together) >= ALWAYS or again >= MIN_STEPS)


def peers_slow_down(steps: Table, late: Late) -> bool:
    """Whether the peers' own work grows step by step too: the straggler then only has more of what slows all ranks."""
    length, own = _all_steps(steps, "step_s"), {}
    for step, lags in late.lags.items():
        waited = {rank: max(lags[late.rank] - lag, 0.0) for rank, lag in lags.items() if rank != late.rank}
        own[step] = Column(length[step][rank] - waited_s for rank, waited_s in waited.items()).median()
    return len(own) >= MIN_GROWING and grows(Table({"step": own, "step_s": own.values()}), "step_s")


# The collective that opens a step, such as a gather of token counts: ranks synchronize there before any of them computes.


def first_collectives(case: Case, steps: Table) -> Table:
    """For each rank and step, when it entered and left the step's first collective, if that was before its forward.

    Only steps that all ranks opened with the same call: a rank that made another call may have been delayed by it.
    """
    rows = [row for rank, own in steps.groupby("rank") for row in _of_rank(rank, own, case.asked)]
    found = Table.of_rows(rows, FIRST_COLUMNS)
    by_step = found.groupby("step")
    everybody = by_step["rank"].transform("nunique") == steps["rank"].nunique()
    return found[everybody & (by_step.call.transform("nunique") == 1)]


def _of_rank(rank: int, steps: Table, asked: Table) -> Iterator[tuple[Any, ...]]:
    calls = [*asked[asked["rank"] == rank].sort_values("begin_s")]
    begins = [call.begin_s for call in calls]
    for row in steps:
        index = bisect.bisect_right(begins, row.end_s - row.step_s)
        first = calls[index] if index < len(calls) else None
        if first is not None and first.begin_s < row.forward_at:
            yield rank, row.step, f"{first.group} {first.call} {first.op}", first.begin_s, first.end_s


def peers_waited(met: Table, late: int) -> bool:
    """Whether the others were in that call until the straggler arrived: if it returns at once, nobody is delayed."""
    left = met[met["rank"] != late].groupby("step").left_at.min()
    own = met[met["rank"] == late]
    waited = [left[step] >= met_at for step, met_at in zip(own.step, own.met_at, strict=True) if step in left]
    return bool(waited) and sum(waited) / len(waited) >= ALWAYS


def is_held_up(case: Case, steps: Table, late: int, lag_s: float) -> bool:
    """Whether loading as many batches as its peers took the rank that much longer, or work of its own takes up most of its steps.

    A rank that loads for the others, or does less than that before the call (evaluates, saves), is meant to be waited for.
    """
    fetched = case.events[(case.events.kind == Kind.DATA) & (case.events.phase == Phase.END)]
    by_rank = defaultdict[int, list[int]](list)
    for (rank, _), number in fetched.groupby(["rank", "step"]).size().items():
        by_rank[rank].append(number)
    batches = {rank: statistics.median(numbers) for rank, numbers in by_rank.items()}
    seconds = steps.groupby("rank").loader_s.median()
    others_s = max((each for rank, each in seconds.items() if rank != late), default=math.nan)
    is_loading = bool(seconds[late] - others_s >= BY_LOADING * lag_s)
    is_most = bool(lag_s >= MOST_OF_STEP * steps[steps["rank"] == late].step_s.median())
    return len(batches) == len(seconds) and len({*batches.values()}) == 1 and (is_loading or is_most)


def doing_in(part: str, seconds: Callable[[str], float]) -> str:
    """The name of the part; time before a forward goes to the loader, to saving, or to the loop itself."""
    if part != "input_s":
        return part.removesuffix("_s")
    if seconds("saving_s") > seconds("input_s") / 2:
        return "saving"
    return "input" if seconds("loader_s") > seconds("input_s") / 2 else "work between steps"
