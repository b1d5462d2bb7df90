"""The shapes that a cost may have: a power of the sizes, a fixed part and a product of them, or a sum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nsadiag.analysis.matrix.scaling.design import Array, Design
from nsadiag.analysis.matrix.scaling.points import Point
from nsadiag.analysis.matrix.scaling.robust import Line, determines, fit_line, span_of

FIXED_PARTS = (0.0, 0.07, 0.2, 0.5, 1.0, 2.0, 4.0, 9.0)
LEAST_FREE = 2  # degrees of freedom
TRUNCATE = 1.0  # one wild point must not decide between two forms
RICHER_COSTS = 0.05  # a parameter more has to be worth so much of the error


@dataclass(frozen=True, kw_only=True)
class Form:
    """`power`: exponents are fitted. `affine`: fixed + product of sizes to whole `powers`. `sum`: a slope for each size.

    In all of them the other factors are offsets: factors of the cost in the first two, addends in the sum.
    """

    kind: Literal["power", "affine", "sum"]
    powers: tuple[float, ...] = ()
    fixed: float = 0.0  # in units of the product at the centre of the sizes

    def rows(self, design: Design, points: Sequence[Point]) -> Array:
        offsets, logs = design.offsets(points), design.logs(points)
        if self.kind == "power":
            return np.column_stack([offsets, logs])
        return np.column_stack([offsets, np.exp(logs)]) if self.kind == "sum" else offsets

    def base(self, design: Design, points: Sequence[Point]) -> Array:
        """The prior of the logarithm, before anything is fitted."""
        if self.kind != "affine":
            return np.zeros(len(points))
        return np.asarray(np.log(self.fixed + np.exp(design.logs(points) @ np.array(self.powers))))


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One form, fitted to one measure."""

    form: Form
    design: Design
    line: Line
    span: Array  # of the rows it was fitted to
    score: float  # typical relative error for a point left out

    def log_of(self, point: Point) -> tuple[float, float] | None:
        """Logarithm of the prediction and its leverage; None where these points do not determine it."""
        if not self.design.covers(point):
            return None
        row = self.form.rows(self.design, [point])[0]
        if not determines(self.span, row):
            return None
        if self.form.kind == "sum":
            value = float(row @ self.line.beta)
            return (float(np.log(value)), self.line.leverage(row / value)) if value > 0 else None
        base = float(self.form.base(self.design, [point])[0])
        return base + float(row @ self.line.beta), self.line.leverage(row)


def fit_form(form: Form, design: Design, points: Sequence[Point], values: Array) -> Fit | None:
    """None where too few points are left over to check it by."""
    rows = form.rows(design, points)
    if len(points) - np.linalg.matrix_rank(rows) - (form.kind == "affine") < LEAST_FREE:
        return None
    if form.kind == "sum":
        line = fit_line(rows, values, scale=values)
    else:
        line = fit_line(rows, np.log(values) - form.base(design, points))
    known = line.left_out[np.isfinite(line.left_out)]
    if len(known) < max(3, len(points) // 2):
        return None
    parameters = int(np.linalg.matrix_rank(rows)) + (form.kind == "affine" and form.fixed > 0)
    error = float(np.mean(np.minimum(np.abs(known), TRUNCATE)))
    return Fit(
        form=form, design=design, line=line, span=span_of(rows), score=error * (1 + RICHER_COSTS * parameters)
    )


def fits_of(points: Sequence[Point], values: Array) -> list[Fit]:
    """Every form that these points can carry, the best first."""
    design = Design.of(points)
    power = fit_form(Form(kind="power"), design, points, values)
    if power is None or not design.sizes:
        return [power] if power else []
    known = exponents_of(power)
    exponents = [known[name][0] if name in known else 0.0 for name in design.sizes]
    forms = [Form(kind="sum"), *_affine_forms(exponents)]
    found = [fit for form in forms if (fit := fit_form(form, design, points, values)) is not None]
    return sorted([power, *found], key=lambda fit: fit.score)


def exponents_of(power: Fit) -> dict[str, tuple[float, Array]]:
    """By size, the exponent and its row; not of those that cannot be told from another factor (ranks from DDP)."""
    found, constants = {}, len(power.span) - len(power.design.sizes)
    for place, name in enumerate(power.design.sizes, start=constants):
        row = np.eye(len(power.span))[place]
        if determines(power.span, row):
            found[name] = (float(power.line.beta[place]), row)
    return found


def _affine_forms(exponents: Sequence[float]) -> Iterator[Form]:
    for powers in itertools.product(*(_whole_powers(e) for e in exponents)):
        if any(powers):
            yield from (Form(kind="affine", powers=powers, fixed=fixed) for fixed in FIXED_PARTS)


def _whole_powers(exponent: float) -> tuple[float, ...]:
    """A fixed part makes an exponent look smaller than it is, never larger."""
    if exponent < -0.3:
        return (-1.0,)
    if exponent < 0.05:
        return (0.0,)
    if exponent < 0.3:
        return (0.0, 1.0)
    return (1.0,) if exponent < 0.9 else (1.0, 2.0)
