"""Optimizer updates under gradients that agree: whether the parameters moved as the control's."""

from __future__ import annotations

import math

from nsadiag.analysis.ingest.first_steps.record import Parameter, Step, Whole
from nsadiag.analysis.ingest.first_steps.sketch import dot
from nsadiag.analysis.matrix.parity.difference import Difference
from nsadiag.analysis.matrix.parity.tolerance import ROUNDING, UNEXPLAINED, UPDATE, UPDATE_OF_ALL


def updates(both: list[tuple[Step, Step]], number: int, names: tuple[str, ...]) -> list[Difference]:
    """Parameters that the optimizer moved otherwise than the control's since the first step.

    Adam takes a whole step by the sign of a gradient, also of one that is nothing but rounding: such a difference is
    no factor in a parameter, and little in all of them together.
    """
    found, lengths, ways = [], [0.0], [0.0]
    (ours, theirs), (ours_now, theirs_now) = both[0], both[number]
    for name in names:
        move = _move(ours.parameters.get(name), ours_now.parameters.get(name))
        other = _move(theirs.parameters.get(name), theirs_now.parameters.get(name))
        if move is None or other is None:
            continue
        length, away = math.hypot(*other), math.dist(move, other)
        lengths.append(length)
        ways.append(away)
        # Below a rounding error of the values themselves nothing is said.
        if not length or away <= max(UPDATE * length, ROUNDING * _norm(theirs_now.parameters[name].value)):
            continue
        ratio = dot(move, other) / length**2
        scaled = math.dist(move, [ratio * each for each in other]) < UNEXPLAINED * away
        found.append(Difference(parameter=name, relative=away / length, ratio=ratio, scaled=scaled))
    if math.hypot(*ways) > UPDATE_OF_ALL * math.hypot(*lengths):
        return found
    return [difference for difference in found if difference.scaled]


def _move(first: Parameter | None, now: Parameter | None) -> list[float] | None:
    values = [p.value.sketch if p and p.value else None for p in (first, now)]
    if values[0] is None or values[1] is None:
        return None
    return [after - before for before, after in zip(values[0].buckets, values[1].buckets, strict=True)]


def _norm(whole: Whole | None) -> float:
    return whole.sketch.norm if whole and whole.sketch else 0.0
