"""The collective that a step begins with, as a gather of numbers of tokens: ranks meet there before any of them computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from nsadiag.analysis.case import Case
from nsadiag.evidence.ring.blackbox import Kind, Phase

ALWAYS = 0.8  # share of the steps
BY_LOADING = 0.5  # share of the lateness
FIRST_COLUMNS = ["rank", "step", "call", "met_at", "left_at"]


def first_met(case: Case, steps: pd.DataFrame) -> pd.DataFrame:
    """By rank and step, when it came to the first collective of the step, and left it, where that was before its forward.

    Only of steps that all ranks began with one and the same call: who called another one may have been held up there.
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


def were_waiting(met: pd.DataFrame, late: int) -> bool:
    """Whether the others were in that call until the late rank came: where it returns at once, nobody is held up."""
    left = met[met["rank"] != late].groupby("step").left_at.min()
    return bool((left >= met[met["rank"] == late].set_index("step").met_at).mean() >= ALWAYS)


def by_loading(case: Case, steps: pd.DataFrame, late: int, lag_s: float) -> bool:
    """Whether the rank took so much longer over as many batches as the others.

    One that does something by itself before they meet, evaluates or saves, is rightly waited for.
    """
    seconds = steps.groupby("rank").loader_s.median()
    fetched = case.events[(case.events.kind == Kind.DATA) & (case.events.phase == Phase.END)]
    batches = fetched.groupby(["rank", "step"]).size().groupby("rank").median()
    alike = len(batches) == len(seconds) and batches.nunique() == 1
    return bool(alike and seconds[late] - seconds.drop(late).max() >= BY_LOADING * lag_s)
