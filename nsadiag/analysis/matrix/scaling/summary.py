"""`scaling` of matrix.json: measured against predicted, how the cost grows, and which cells are outliers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from nsadiag.analysis.matrix.scaling.forms import Fit, Form, exponents_of, fit_form
from nsadiag.analysis.matrix.scaling.model import CostModel, Prediction, fit_model
from nsadiag.analysis.matrix.scaling.points import MEASURES, RANKS, Point
from nsadiag.analysis.matrix.scaling.robust import t_90

NAMES = {
    "step_s": "step time",
    "run_s": "run time",
    "peak_rss_mib": "peak memory per rank",
    "peak_device_mib": "peak memory per device",
}
# Several times the half width of an interval that nine of ten cells lie in: about one in twenty thousand by chance.
FAR_OFF = 2.5
LEAST_FACTOR = 1.5
LEAST_FREE = 3
# Where two cells alone share a setting, each is an outlier beside the other: nobody can tell which of them is.
MOST_LEVERAGE = 0.6
# What nobody would call a difference, whatever the factor.
LEAST_DIFFERENCE = {"step_s": 0.005, "run_s": 1.0, "peak_rss_mib": 64.0, "peak_device_mib": 64.0}
UNSURE_EXPONENT = 1.0  # an interval wider than that says nothing
JUMP = 1.5  # from one value to the next, beyond what the curve says

Row = Mapping[str, Any]  # of matrix.json

Groups = list[tuple[list[Point], Prediction | None]]  # repeats of a cell, and what the others say of it


def summary(points: Sequence[Point]) -> Row:
    """Nothing where no measure could be fitted."""
    models = {name: model for name in NAMES if (model := fit_model(points, name))}
    if not models:
        return {}
    groups = {name: _groups(model) for name, model in models.items()}
    offs = [off for name in models for held in groups[name] if (off := _off(*held, name))]
    return {
        "measures": {name: _measure(model, groups[name]) for name, model in models.items()},
        "offs": _one_a_cell(offs),
        "cut_short": _cut_short(points),
    }


def _cut_short(points: Sequence[Point]) -> list[Row]:
    """Cells that ran out of time where the others predict that they would: too little time is no hang."""
    model, found = fit_model(points, "run_s"), list[Row]()
    for point in points:
        told = model.predict(point) if model and point.cut_short_s else None
        if told and point.cut_short_s and told.low > point.cut_short_s:
            found.append({"id": point.id, "after_s": point.cut_short_s, "predicted": told.to_json()})
    return found


def _measure(model: CostModel, groups: Groups) -> Row:
    name = model.measure
    return {
        "name": NAMES[name],
        "cost": MEASURES[name],
        "cells": len(model.points),
        "form": _form(model),
        # Of a cell that was left out, nine of ten by that factor at most.
        "typical_error": float(f"{model.best.line.sigma:.3g}"),
        "growth": _growth(model),
        "jumps": _jumps(model),
        "points": [row for members, held in groups for row in _rows(members, held, name)],
    }


def _groups(model: CostModel) -> Groups:
    """Repeats together, and what the other cells say of them."""
    cells = ((members, model.without(members[0].group)) for members in _repeats(model.points))
    return [(members, others.predict(members[0]) if others else None) for members, others in cells]


def _repeats(points: Sequence[Point]) -> list[list[Point]]:
    """The repeats of each cell."""
    found: dict[Any, list[Point]] = {}
    for point in points:
        found.setdefault(point.group, []).append(point)
    return list(found.values())


def _rows(members: Sequence[Point], held: Prediction | None, measure: str) -> Iterator[Row]:
    for point in members:
        yield {
            "id": point.id,
            "measured": point.measured[measure],
            "predicted": held.to_json() if held else None,
            "beside": point.beside,
        }


def _off(members: Sequence[Point], held: Prediction | None, measure: str) -> Row | None:
    """A finding, if the cell (the median of its repeats) is far from what all others say."""
    if held is None or held.free < LEAST_FREE or held.leverage > MOST_LEVERAGE:
        return None
    measured = float(median(p.measured[measure] for p in members))
    factor = measured / held.value
    far = max(factor, 1 / factor) >= LEAST_FACTOR and held.misses(measured) >= FAR_OFF
    if not far or abs(measured - held.value) < LEAST_DIFFERENCE[measure]:
        return None
    return {
        "id": members[0].id,
        "repeats": len(members),
        "measure": measure,
        "name": NAMES[measure],
        "measured": float(f"{measured:.4g}"),
        "predicted": held.to_json(),
        "factor": float(f"{factor:.3g}"),
        "beside": max(p.beside for p in members),
    }


def _one_a_cell(offs: Sequence[Row]) -> list[Row]:
    """A run takes long because its steps do: the first measure says it."""
    first: dict[str, Row] = {}
    for off in offs:
        first.setdefault(off["id"], off)
    return list(first.values())


def _form(model: CostModel) -> Row:
    form, sizes = model.best.form, model.best.design.sizes
    if form.kind == "affine":
        powers = dict(zip(sizes, form.powers, strict=True))
        return {"kind": form.kind, "powers": powers, "fixed": form.fixed}
    if form.kind == "sum":
        # In a sum each size has its slope, and what is left of it at zero is the fixed part.
        return {"kind": form.kind, "powers": dict.fromkeys(sizes, 1.0), "fixed": 1.0}
    return {"kind": form.kind}


def _growth(model: CostModel) -> dict[str, dict[str, float]]:
    """By size, the exponent of the power that fits best, and the interval it lies in nine times of ten."""
    power = next((fit for fit in model.fits if fit.form.kind == "power"), None) or _power(model)
    if power is None:
        return {}
    growth = {}
    for name, (value, row) in exponents_of(power).items():
        half = t_90(power.line.free) * power.line.sigma * float(np.sqrt(power.line.leverage(row)))
        if 2 * half < UNSURE_EXPONENT:
            interval = {"exponent": value, "low": value - half, "high": value + half}
            growth[name] = {key: round(number, 3) for key, number in interval.items()}
    return growth


def _power(model: CostModel) -> Fit | None:
    values = np.array([p.measured[model.measure] for p in model.points])
    return fit_form(Form(kind="power"), model.best.design, model.points, values)


def _jumps(model: CostModel) -> list[Row]:
    """From each value of a size to the next, all else equal: what was measured, and what the curve says."""
    cells = [(each[0], median(p.measured[model.measure] for p in each)) for each in _repeats(model.points)]
    found = []
    for name in model.best.design.sizes:
        if name == RANKS:
            continue
        values = sorted({point.sizes[name] for point, _ in cells})
        for low, high in itertools.pairwise(values):
            found += _jump(model, cells, name, low, high)
    return found


def _jump(
    model: CostModel, cells: Sequence[tuple[Point, float]], name: str, low: float, high: float
) -> list[Row]:
    before = {_rest(point, name): (point, value) for point, value in cells if point.sizes[name] == low}
    ratios, curve = [], []
    for point, value in cells:
        pair = before.get(_rest(point, name))
        if point.sizes[name] != high or pair is None:
            continue
        predictions = model.best.log_of(pair[0]), model.best.log_of(point)
        if predictions[0] and predictions[1]:
            ratios.append(value / pair[1])
            curve.append(float(np.exp(predictions[1][0] - predictions[0][0])))
    if not ratios:
        return []
    measured, predicted = float(median(ratios)), float(median(curve))
    beyond = max(measured / predicted, predicted / measured)
    return [
        {
            "axis": name,
            "from": low,
            "to": high,
            "pairs": len(ratios),
            "measured": round(measured, 3),
            "curve": round(predicted, 3),
            "is_jump": beyond >= JUMP and len(ratios) >= 2,
        }
    ]


def _rest(point: Point, name: str) -> tuple[Any, ...]:
    sizes: Mapping[str, float] = {k: v for k, v in point.sizes.items() if k != name}
    return (*sorted(sizes.items()), *sorted(point.kinds.items()))
