"""The collective that opens a step, such as a gather of token counts: ranks synchronize there before any of them computes."""

from __future__ import annotations

import bisect
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table

ALWAYS = 0.8  # share of the steps in which an observation has to hold
BY_LOADING = 0.5  # share of the lag
FIRST_COLUMNS = ["rank", "step", "call", "met_at", "left_at"]


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


def is_due_to_loading(case: Case, steps: Table, late: int, lag_s: float) -> bool:
    """Whether loading the same number of batches took the rank that much longer.

    A rank that does work of its own before that call (evaluates, saves) is meant to be waited for.
    """
    seconds = steps.groupby("rank").loader_s.median()
    fetched = case.events[(case.events.kind == Kind.DATA) & (case.events.phase == Phase.END)]
    by_rank = defaultdict[int, list[int]](list)
    for (rank, _), number in fetched.groupby(["rank", "step"]).size().items():
        by_rank[rank].append(number)
    batches = {rank: statistics.median(numbers) for rank, numbers in by_rank.items()}
    alike = len(batches) == len(seconds) and len({*batches.values()}) == 1
    others_s = max((each for rank, each in seconds.items() if rank != late), default=math.nan)
    return alike and bool(seconds[late] - others_s >= BY_LOADING * lag_s)
