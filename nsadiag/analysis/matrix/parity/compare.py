"""Comparison of two runs that should compute the same; refused where their inputs differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from nsadiag.analysis.ingest.first_steps.record import Parameter, Record, RecordedStep, Whole
from nsadiag.analysis.ingest.first_steps.sketch import dot
from nsadiag.analysis.matrix.parity.comparable import relative, why_not_comparable, why_other_work
from nsadiag.analysis.matrix.parity.difference import Difference
from nsadiag.analysis.matrix.parity.tolerance import (
    FLOOR,
    ROUNDING,
    UNEXPLAINED,
    UPDATE,
    UPDATE_OF_ALL,
    Tolerance,
    tolerance_of,
)

Judgement = Literal["same", "differs", "not_comparable"]
What = Literal["loss", "gradient", "missing", "clipping", "update", "number"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A run against its control."""

    judgement: Judgement
    why: str = ""  # not comparable
    what: What | None = None  # the first thing that differs
    step: int | None = None
    steps: int = 0  # that were compared
    tolerance: float | None = None
    precision: str | None = None
    # At that step, or the first: the cell's, the control's.
    losses: tuple[float | None, float | None] = (None, None)
    worst: Difference | None = None  # also of runs that are the same
    differing: tuple[Difference, ...] = ()  # worst first
    agreeing: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)  # all that were compared, in the model's order

    @property
    def loss_difference(self) -> float | None:
        """Relative."""
        return relative(*self.losses)


def compare(cell: Record, control: Record) -> Comparison:
    """Steps are compared one by one; the first that differs says where to look."""
    refused = why_not_comparable(cell, control)
    if refused:
        return Comparison(judgement="not_comparable", why=refused)
    both = list(zip(cell.steps, control.steps, strict=False))
    tolerance = tolerance_of(_precisions(both[0][0]) | _precisions(both[0][1]))
    found = None
    for number, (ours, theirs) in enumerate(both):
        refused = why_other_work(ours.facts, theirs.facts, cell.world_size == control.world_size, tolerance)
        if refused and not number:
            return Comparison(judgement="not_comparable", why=refused)
        if refused:
            break
        found = _compare_step(number, both, tolerance, found)
        if found.judgement == "differs":
            break
    assert found is not None
    return found


# -- one step ----------------------------------------------------------------------------------------------


def _compare_step(
    number: int,
    both: list[tuple[RecordedStep, RecordedStep]],
    tolerance: Tolerance,
    before: Comparison | None,
) -> Comparison:
    ours, theirs = both[number]
    assert ours.facts is not None and theirs.facts is not None
    names = tuple(name for name in theirs.parameters if name in ours.parameters)
    losses = ours.facts.loss, theirs.facts.loss
    here = Comparison(
        judgement="same",
        step=number,
        steps=number + 1,
        precision=tolerance.precision,
        names=names,
        losses=losses,
    )
    # In the order of a step: what the optimizer did last time, the loss, gradients before and after clipping.
    if number:
        moved = _updates(both, number, names)
        if moved:
            return _differs(replace(here, step=number - 1), "update", moved, UPDATE)
    unclipped = [name for name in names if name in ours.unclipped and name in theirs.unclipped]
    early = _gradients(ours.unclipped, theirs.unclipped, unclipped, both[number], tolerance.gradient(number))
    late = _gradients(ours.parameters, theirs.parameters, names, both[number], tolerance.gradient(number))
    gradients = [d for d in (early if len(unclipped) == len(names) else late) if d[1]]
    if _loss_differs(losses, tolerance, number):
        return _differs(here, "loss", [d for d, _ in gradients], tolerance.loss)
    if gradients:
        found = [d for d, _ in gradients]
        # Where some have none, that others differ is its consequence.
        missing = any(d.nothing for d in found)
        return _differs(here, "missing" if missing else "gradient", found, tolerance.gradient(number))
    clipped = [d for d, beyond in late if beyond]
    if clipped:
        return _differs(here, "clipping", clipped, tolerance.gradient(number))
    worst = max(
        [d for d, _ in late] + ([before.worst] if before and before.worst else []), key=_badness, default=None
    )
    return replace(
        here,
        tolerance=tolerance.gradient(number),
        worst=worst,
        agreeing=names,
        losses=before.losses if before else losses,
    )


def _differs(here: Comparison, what: What, differing: list[Difference], tolerance: float) -> Comparison:
    ordered = tuple(sorted(differing, key=_badness, reverse=True))
    named = {d.parameter for d in ordered}
    return replace(
        here,
        judgement="differs",
        what="number" if ordered and math.isinf(ordered[0].relative) else what,
        tolerance=tolerance,
        worst=ordered[0] if ordered else None,
        differing=ordered,
        agreeing=tuple(name for name in here.names if name not in named),
    )


def _badness(difference: Difference) -> float:
    return difference.relative


def _loss_differs(losses: tuple[float | None, float | None], tolerance: Tolerance, step: int) -> bool:
    if None in losses:
        return losses[0] is not losses[1]
    difference = relative(*losses)
    return difference is not None and difference > tolerance.loss * (1 + step) ** 2


def _gradients(
    ours: dict[str, Parameter],
    theirs: dict[str, Parameter],
    names: list[str] | tuple[str, ...],
    steps: tuple[RecordedStep, RecordedStep],
    tolerance: float,
) -> list[tuple[Difference, bool]]:
    """Each parameter's difference, and whether it is beyond the tolerance."""
    scales = [step.facts.scale if step.facts else 1.0 for step in steps]
    wholes = {name: (ours[name].gradient, theirs[name].gradient) for name in names}
    elements = {name: math.prod(theirs[name].shape) for name in names}
    square = sum((w[1].sketch.square if w[1].sketch else 0.0) for w in wholes.values()) / scales[1] ** 2
    usual = math.sqrt(square / max(sum(elements.values()), 1))
    found = []
    for name, (mine, other) in wholes.items():
        floor = FLOOR * usual * math.sqrt(elements[name])
        difference = _difference(name, mine, other, scales, floor)
        if difference is not None:
            found.append((difference, difference.relative > tolerance))
    return found


def _difference(name: str, mine: Whole, other: Whole, scales: list[float], floor: float) -> Difference | None:
    if not (mine.finite and other.finite):
        both = not (mine.finite or other.finite)
        return None if both else Difference(parameter=name, relative=math.inf)
    if other.sketch is None and mine.sketch is None:
        return Difference(parameter=name, relative=0.0)
    # A gradient that nobody computed is one of zeros: DDP and FSDP make it so where a parameter is not used.
    a = mine.sketch.times(1 / scales[0]) if mine.sketch else None
    b = other.sketch.times(1 / scales[1]) if other.sketch else None
    a, b = a or b.times(0.0), b or a.times(0.0)  # type: ignore[union-attr]
    size = max(b.norm, floor)
    if size == 0:
        return Difference(parameter=name, relative=0.0 if a.norm == 0 else math.inf)
    distance, apart = a.distance(b), mine.apart / scales[0]
    relative = max(distance, apart) / size
    average = mine.average.times(1 / scales[0]).distance(b) / size if mine.average else math.inf
    ratio = a.ratio(b)
    return Difference(
        parameter=name,
        relative=relative,
        ratio=ratio,
        nothing=a.norm == 0,
        scaled=ratio is not None and a.distance(b.times(ratio)) < 0.02 * distance,
        apart=apart > 0.1 * max(distance, apart),
        averaged=average < 0.01 * relative,
    )


# -- small things ------------------------------------------------------------------------------------------


def _precisions(step: RecordedStep) -> frozenset[str]:
    computed = step.facts.precisions if step.facts else frozenset()
    return computed | {p.dtype for p in step.parameters.values()}


def _updates(
    both: list[tuple[RecordedStep, RecordedStep]], number: int, names: tuple[str, ...]
) -> list[Difference]:
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
