"""Optimizer steps of one rank, each from the end of the step before to its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from nsadiag.evidence.ring.blackbox import Kind, Phase

Array = npt.NDArray[Any]


class Step(NamedTuple):
    """One completed step. `ready_s` is when its last gradient had arrived: from there on the rank can only wait for its peers."""

    rank: int
    step: int
    end_s: float
    step_s: float
    cpu_s: float
    forward_at: float
    ready_s: float
    input_s: float
    forward_s: float
    backward_s: float
    loader_s: float  # this and the next are parts of what lies before the forward
    saving_s: float
    computed: bool  # whether it ran the model: under Join a rank makes the steps of others as well, without one of its own
    elements: int  # given to its forwards


STEP_COLUMNS = [*Step._fields]


def steps_of(rank: int, events: pd.DataFrame) -> Iterator[Step]:
    """From the rank's own events."""
    # In plain arrays: a table of thousands of steps is cut thirty times as fast as by masks over all of it.
    events = events.sort_values("t_s", kind="stable")
    ends = events.loc[events.kind == Kind.STEP, ["a", "t_s", "b"]].to_numpy()
    columns = [events[column].to_numpy() for column in ("t_s", "kind", "phase", "a")]
    for (_, begin, cpu_before), (step, end, cpu_ns) in itertools.pairwise(ends):
        inside = slice(np.searchsorted(columns[0], begin, "right"), np.searchsorted(columns[0], end, "right"))
        t_s, kind, phase, a = (column[inside] for column in columns)
        # Accumulation makes several forwards of one step.
        forward = t_s[(kind == Kind.FORWARD) & (phase == Phase.BEGIN)]
        backward = t_s[(kind == Kind.BACKWARD) & (phase == Phase.BEGIN)]
        gradients = t_s[kind == Kind.GRADIENT]
        first_forward = forward.min() if len(forward) else begin
        last_backward = backward.max() if len(backward) else end
        work_ends = gradients.max() if len(gradients) else last_backward
        yield Step(
            rank=rank,
            step=int(step),
            end_s=end,
            step_s=end - begin,
            cpu_s=(cpu_ns - cpu_before) / 1e9,
            forward_at=first_forward,
            ready_s=work_ends,
            input_s=first_forward - begin,
            forward_s=last_backward - first_forward,
            backward_s=work_ends - last_backward,
            loader_s=_spent(t_s, phase, kind == Kind.DATA),
            saving_s=_spent(t_s, phase, kind == Kind.IO),
            computed=bool(len(forward) or len(backward) or len(gradients)),
            elements=int(a[(kind == Kind.FORWARD) & (phase == Phase.END)].sum()),
        )


def _spent(t_s: Array, phase: Array, mine: Array) -> float:
    """Seconds between begins and ends of those events."""
    begins, ends = t_s[mine & (phase == Phase.BEGIN)], t_s[mine & (phase == Phase.END)]
    return float(ends.sum() - begins.sum()) if len(begins) == len(ends) else 0.0
