"""Lags: in which steps a rank is the last to be ready, by how much, and whether its peers wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from nsadiag.analysis.relations.trend import MIN_STEPS as MIN_GROWING
from nsadiag.analysis.relations.trend import grows
from nsadiag.analysis.rules.performance.first_collective import ALWAYS

MIN_STEPS = 5
SHARE_OF_STEP = 0.3  # of the step, lost by the waiting peers
MIN_LAG_S = 0.02  # below this, scheduling noise on a shared machine looks the same
MIN_LOST_S = 0.5  # total wait of the peers: a few uneven steps make no straggler
SLACK = 0.1  # of a step: tolerance for clocks and threads
# The point at which ranks first synchronize: FSDP in forward, DDP when the last gradient has arrived.
MEETINGS = {"ready_s": "have its gradients", "forward_at": "begin its forward"}
FIRST_MET = "enter the collective that opens the step"


@dataclass(frozen=True, kw_only=True)
class Late:
    """The straggler, and its lag."""

    rank: int
    lag_s: float
    share: float  # of the steps
    last_to: str
    part: str | None = None  # column of the step's part, where the lag alone determines it
    lags: pd.DataFrame = field(compare=False, repr=False)  # as `lags_of` gives them


def alike(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps in which either all ranks or none ran their model.

    Under Join, a rank without data joins the collectives of the others: it waits, and no rank is late.
    """
    kinds = steps.groupby("step").computed.transform("nunique")
    same: pd.DataFrame = steps[kinds == 1]
    return same


def _by_step(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """That time of each rank (columns) in each step (rows) after the warm-up that all ranks made."""
    table = steps.pivot_table(index="step", columns="rank", values=column).dropna()
    settled: pd.DataFrame = table[table.index > min(3, table.index.max() // 3)]
    return settled


def lags_of(steps: pd.DataFrame, column: str) -> pd.DataFrame:
    """For each step (row) and rank (column), the seconds after the first rank.

    Durations on one rank mislead: where ranks wait for the slow one (in backward, in `.item()`) differs by backend.
    The order in which they become ready does not.
    """
    ready = _by_step(steps, column)
    lags: pd.DataFrame = ready.sub(ready.min(axis=1), axis=0)
    return lags


def latest(steps: pd.DataFrame, column: str) -> Late | None:
    lags = lags_of(steps, column)
    if len(lags) < MIN_STEPS:
        return None
    medians = lags.median()
    slowest = int(str(medians.idxmax()))
    lag, share = float(medians[slowest]), float((lags.idxmax(axis=1) == slowest).mean())
    step_s = float(steps[steps["rank"] == slowest].step_s.median())
    if lag < max(MIN_LAG_S, SHARE_OF_STEP * step_s) or share < ALWAYS or lag * len(lags) < MIN_LOST_S:
        return None
    part = "input_s" if column in ("forward_at", "met_at") else None
    last_to = MEETINGS.get(column, FIRST_MET)
    return Late(rank=slowest, lag_s=lag, share=share, last_to=last_to, part=part, lags=lags)


def meet(steps: pd.DataFrame, column: str, slowest: int) -> bool:
    """Whether the early ranks wait for that rank: none of them ends a step before it is ready for the step.

    In most steps, or repeatedly, if they synchronize every few steps. Ranks that train independently, or have made
    other numbers of steps (under Join), are not waiting for it.
    """
    ready = _by_step(steps, column)
    ends = steps.pivot_table(index="step", columns="rank", values="end_s").reindex(ready.index)
    own, first = ready[slowest], ends.drop(columns=slowest).min(axis=1)
    together = first >= own - SLACK * own.diff().median()
    again = int((together & ~together.shift(1, fill_value=True)).sum())
    return bool(together.mean() >= ALWAYS or again >= MIN_STEPS)


def peers_slow_down(steps: pd.DataFrame, late: Late) -> bool:
    """Whether the peers' own work grows step by step too: the straggler then only has more of what slows all ranks."""
    length = steps.pivot_table(index="step", columns="rank", values="step_s").reindex(late.lags.index)
    waited = late.lags.rsub(late.lags[late.rank], axis=0).clip(lower=0.0)
    own = (length - waited).drop(columns=late.rank).median(axis=1).rename("step_s")
    return len(own) >= MIN_GROWING and grows(own.reset_index(), "step_s")
