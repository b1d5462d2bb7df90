"""Robust least squares, with the uncertainty of its predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsadiag.analysis.matrix.scaling.design import Array

ROUNDS_L1, ROUNDS_BISQUARE = 8, 4
BISQUARE = 4.685  # 95 % as efficient as plain least squares where no point is wild
MAD_TO_SIGMA = 1.4826
# Two runs of one cell differ by as much on a quiet machine: no fit is believed to be better than that.
LEAST_SIGMA = 0.03
T_90 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)  # two-sided, by degrees of freedom


@dataclass(frozen=True, kw_only=True)
class Line:
    """y = rows @ beta, fitted."""

    beta: Array
    weights: Array
    inverse: Array  # of rows' weights rows
    left_out: Array  # residual of each point against the fit without it; nan where that cannot be said
    free: int  # degrees of freedom

    @property
    def sigma(self) -> float:
        """Typical error of a prediction, by what each point shows when it is left out."""
        known = self.left_out[np.isfinite(self.left_out)]
        if not len(known):
            return float("inf")
        return max(LEAST_SIGMA, MAD_TO_SIGMA * float(np.median(np.abs(known))))

    def leverage(self, row: Array) -> float:
        """The distance of the point from those that were fitted: the variance of its mean, in units of sigma squared."""
        return float(row @ self.inverse @ row)


def t_90(free: int) -> float:
    """Student's t for 90 %."""
    if free < 1:
        return float("inf")
    return T_90[free - 1] if free <= len(T_90) else 1.645 + 1.6 / free


def fit_line(rows: Array, y: Array, scale: Array | None = None) -> Line:
    """Robust: first by absolute values, which wild points hardly move, then by Tukey's bisquare around that.

    `scale` divides rows and residuals where errors are relative.
    """
    if scale is not None:
        rows, y = rows / scale[:, None], y / scale
    rank = int(np.linalg.matrix_rank(rows))
    weights = np.ones(len(y))
    beta = _solve(rows, y, weights)
    for _ in range(ROUNDS_L1):
        beta = _solve(rows, y, 1 / np.maximum(np.abs(y - rows @ beta), 1e-6))
    for _ in range(ROUNDS_BISQUARE):
        weights = _bisquare(y - rows @ beta, rank)
        beta = _solve(rows, y, weights)
    if np.linalg.matrix_rank(rows * weights[:, None]) < rank:
        # A whole direction hung on points that looked wild: then nobody can tell that they are.
        weights = np.ones(len(y))
        beta = _solve(rows, y, weights)
    inverse = np.asarray(np.linalg.pinv((rows * weights[:, None]).T @ rows), dtype=np.float64)
    # A point that was given no weight is left out already.
    hats = weights * np.einsum("ij,jk,ik->i", rows, inverse, rows)
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = np.where(hats < 1 - 1e-6, (y - rows @ beta) / (1 - hats), np.nan)
    return Line(beta=beta, weights=weights, inverse=inverse, left_out=left_out, free=len(y) - rank)


def _solve(rows: Array, y: Array, weights: Array) -> Array:
    root = np.sqrt(weights)
    return np.asarray(np.linalg.lstsq(rows * root[:, None], y * root, rcond=None)[0])


def _bisquare(residuals: Array, used: int) -> Array:
    # As many residuals as parameters are about zero by construction: they say nothing of the noise.
    spread = np.sort(np.abs(residuals))[min(used, len(residuals) - 1) :]
    sigma = max(LEAST_SIGMA, MAD_TO_SIGMA * float(np.median(spread)))
    inside = np.clip(1 - (residuals / (BISQUARE * sigma)) ** 2, 0, None)
    return np.asarray(inside**2)


def span_of(rows: Array) -> Array:
    """The projector on the directions of which these rows know anything."""
    return np.asarray(np.linalg.pinv(rows) @ rows)


def determines(span: Array, row: Array) -> bool:
    """Whether fitted rows say anything of this one: there is no new direction in it."""
    return bool(np.max(np.abs(row @ span - row)) < 1e-6)
