"""The cost model of one measure: the best form, what it predicts for another cell, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nsadiag.analysis.matrix.scaling.design import Design
from nsadiag.analysis.matrix.scaling.forms import Fit, fit_form, fits_of
from nsadiag.analysis.matrix.scaling.points import Point
from nsadiag.analysis.matrix.scaling.robust import t_90

RIVAL = 1.5  # a form whose error is at most so many times the best one's may be the true one
MOST_FORMS = 5
# Beyond this a prediction is none.
WIDEST = 10.0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A value and the interval that should hold nine of ten such cells."""

    value: float
    low: float
    high: float
    free: int  # degrees of freedom behind it
    leverage: float = 0.0  # 1: it hangs on one other cell alone

    def to_json(self) -> dict[str, float]:
        return {name: float(f"{getattr(self, name):.4g}") for name in ("value", "low", "high")}

    def misses(self, measured: float) -> float:
        """The distance in half widths of the interval: 1 at its edge."""
        edge = self.high if measured > self.value else self.low
        width = abs(float(np.log(edge / self.value)))
        return abs(float(np.log(measured / self.value))) / width if width else float("inf")


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Fitted to one measure of some cells."""

    measure: str
    points: tuple[Point, ...]
    fits: tuple[Fit, ...]  # the best first, and those that may as well be true

    @property
    def best(self) -> Fit:
        return self.fits[0]

    def predict(self, point: Point) -> Prediction | None:
        """None where nothing like it was measured, or the forms disagree by too much."""
        return _joined([_predicted(fit, point) for fit in self.fits])

    def without(self, group: tuple[object, ...]) -> CostModel | None:
        """The same forms, fitted to the others: so that a cell is held against what it had no part in."""
        others = tuple(p for p in self.points if p.group != group)
        if not others:
            return None
        design, values = Design.of(others), np.array([p.measured[self.measure] for p in others])
        # The powers of a form belong to sizes by their place.
        forms = [fit.form for fit in self.fits if fit.design.sizes == design.sizes]
        again = tuple(fit for form in forms if (fit := fit_form(form, design, others, values)) is not None)
        return CostModel(measure=self.measure, points=others, fits=again) if again else None


def fit_model(points: Sequence[Point], measure: str) -> CostModel | None:
    """None where too few cells have the measure, or too few are left over to check the fit by."""
    known = tuple(p for p in points if measure in p.measured)
    if len(known) < 4:
        return None
    fits = fits_of(known, np.array([p.measured[measure] for p in known]))
    if not fits:
        return None
    # One of each kind: twelve sizes of the fixed part would tell the same twelve times.
    kinds: dict[object, Fit] = {}
    for fit in fits:
        if fit.score <= RIVAL * fits[0].score + 0.01:
            kinds.setdefault((fit.form.kind, fit.form.powers), fit)
    return CostModel(measure=measure, points=known, fits=tuple(kinds.values())[:MOST_FORMS])


def _predicted(fit: Fit, point: Point) -> Prediction | None:
    found = fit.log_of(point)
    if found is None or not np.isfinite(fit.line.sigma):
        return None
    log, leverage = found
    free = fit.line.free - (fit.form.kind == "affine")
    half = t_90(free) * fit.line.sigma * float(np.sqrt(1 + max(leverage, 0.0)))
    return Prediction(
        value=float(np.exp(log)),
        low=float(np.exp(log - half)),
        high=float(np.exp(log + half)),
        free=free,
        leverage=leverage,
    )


def _joined(found: Sequence[Prediction | None]) -> Prediction | None:
    """The best form's value, in an interval that has room for what the others say."""
    if not found or found[0] is None:
        return None
    known = [p for p in found if p is not None]
    low, high = min(p.low for p in known), max(p.high for p in known)
    value = found[0].value
    if not (low > 0 and high < float("inf")) or max(high / value, value / low) > WIDEST:
        return None
    return replace(found[0], low=low, high=high)
