"""Conditions for comparing two runs: equal parameters, equal data, equal randomness, else the reason."""

from __future__ import annotations

from nsadiag.analysis.ingest.first_steps.record import Facts, Parameter, Record
from nsadiag.analysis.matrix.parity.tolerance import Tolerance, start_tolerance
from nsadiag.evidence.spans import shortened

SHOWN = 3


def relative(a: float | None, b: float | None) -> float | None:
    """The difference of two numbers by the larger of them."""
    if a is None or b is None:
        return None
    size = max(abs(a), abs(b))
    return abs(a - b) / size if size else 0.0


def why_not_comparable(cell: Record, control: Record) -> str:
    """The reason why these two runs cannot be compared at all; empty if they can."""
    for record, name in ((cell, "this run"), (control, "the control")):
        if not record.steps:
            return f"{name} recorded no step of an optimizer"
        if len(record.ranks) < record.world_size:
            return f"{name} has records of {len(record.ranks)} of {record.world_size} ranks"
    ours, theirs = cell.steps[0].parameters, control.steps[0].parameters
    for here, there, name in ((ours, theirs, "this run"), (theirs, ours, "the control")):
        only = [p for p in here if p not in there]
        if only:
            return f"only {name} trains {shortened(only, SHOWN)}"
    for name, mine in ours.items():
        refused = _not_one_parameter(mine, theirs[name])
        if refused:
            return refused
    return ""


def _not_one_parameter(mine: Parameter, other: Parameter) -> str:
    if mine.shape != other.shape:
        return f"{mine.name} has the shape {list(mine.shape)}, in the control {list(other.shape)}"
    if not (mine.complete and other.complete):
        return f"not all of {mine.name} is on record"
    a, b = mine.value, other.value
    if a is None or b is None or a.sketch is None or b.sketch is None:
        return f"the values of {mine.name} before the first step are not on record"
    allowed = start_tolerance(mine.dtype, other.dtype) * b.sketch.norm
    if max(a.apart, b.apart) > allowed:
        return f"ranks start from different values of {mine.name}"
    if a.sketch.distance(b.sketch) > allowed:
        return f"they do not start from the same parameters: {mine.name} differs before the first step"
    return ""


def why_other_work(a: Facts | None, b: Facts | None, same_world: bool, tolerance: Tolerance) -> str:
    """The reason why a step of these two cannot be compared; empty if it can."""
    if a is None or b is None:
        return "what went into the step is not on record"
    data = a.data.against(b.data)
    if data == "other":
        return "they were given different data"
    if (a.drew or b.drew) and not (same_world and a.drew == b.drew and a.random == b.random):
        return "the forward pass draws random numbers (dropout?), and not the same ones in both"
    if a.diverged and b.diverged:
        return "the loss is no number in either"
    if data == "same":
        return ""
    difference = relative(a.loss, b.loss)
    # Losses of different data may be close, too: only those that agree closely speak for themselves.
    if difference is None or difference > tolerance.of_unknown_data:
        return "nothing says that they were given the same data, and their losses do not agree closely enough to tell"
    return ""
