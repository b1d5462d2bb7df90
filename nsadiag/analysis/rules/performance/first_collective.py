"""The collective that opens a step, such as a gather of token counts: ranks synchronize there before any of them computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from nsadiag.analysis.case import Case
from nsadiag.evidence.ring.blackbox import Kind, Phase

ALWAYS = 0.8  # share of the steps in which an observation has to hold
BY_LOADING = 0.5  # share of the lag
FIRST_COLUMNS = ["rank", "step", "call", "met_at", "left_at"]


def first_collectives(case: Case, steps: pd.DataFrame) -> pd.DataFrame:
    """For each rank and step, when it entered and left the step's first collective, if that was before its forward.

    Only steps that all ranks opened with the same call: a rank that made another call may have been delayed by it.
    """
    rows = [row for rank, own in steps.groupby("rank") for row in _of_rank(rank, own, case.asked)]
    found = pd.DataFrame(rows, columns=FIRST_COLUMNS)
    by_step = found.groupby("step")
    everybody = by_step["rank"].transform("nunique") == steps["rank"].nunique()
    same: pd.DataFrame = found[everybody & (by_step.call.transform("nunique") == 1)]
    return same


def _of_rank(rank: Any, steps: pd.DataFrame, asked: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    calls = asked[asked["rank"] == rank].sort_values("begin_s")
    begun = (steps.end_s - steps.step_s).to_numpy()
    nexts = np.searchsorted(calls.begin_s.to_numpy(), begun, "right")
    for step, forward_at, index in zip(steps.step, steps.forward_at, nexts, strict=True):
        first = calls.iloc[index] if index < len(calls) else None
        if first is not None and first.begin_s < forward_at:
            yield rank, step, f"{first.group} {first.call} {first.op}", first.begin_s, first.end_s


def peers_waited(met: pd.DataFrame, late: int) -> bool:
    """Whether the others were in that call until the straggler arrived: if it returns at once, nobody is delayed."""
    left = met[met["rank"] != late].groupby("step").left_at.min()
    return bool((left >= met[met["rank"] == late].set_index("step").met_at).mean() >= ALWAYS)


def is_due_to_loading(case: Case, steps: pd.DataFrame, late: int, lag_s: float) -> bool:
    """Whether loading the same number of batches took the rank that much longer.

    A rank that does work of its own before that call (evaluates, saves) is meant to be waited for.
    """
    seconds = steps.groupby("rank").loader_s.median()
    fetched = case.events[(case.events.kind == Kind.DATA) & (case.events.phase == Phase.END)]
    batches = fetched.groupby(["rank", "step"]).size().groupby("rank").median()
    alike = len(batches) == len(seconds) and batches.nunique() == 1
    return bool(alike and seconds[late] - seconds.drop(late).max() >= BY_LOADING * lag_s)
