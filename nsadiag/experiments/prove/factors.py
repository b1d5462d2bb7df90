"""Factors by which gradients, or the ways of parameters, differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from nsadiag.experiments.prove.record import Array

ALIKE = 0.02
UNEXPLAINED = 0.05  # of the difference


class Both(Protocol):
    """The values of a rank, and of one process."""

    @property
    def mine(self) -> Array: ...

    @property
    def other(self) -> Array: ...


def common_factor(found: Sequence[Both]) -> float | None:
    """The factor that explains all of them, if one does."""
    ratios = []
    for pair in found:
        square = float((pair.other**2).sum())
        ratio = (
            float((pair.mine * pair.other).sum()) / square if square and np.isfinite(pair.mine).all() else 0.0
        )
        if not ratio or not explains(ratio * pair.other, pair.mine, pair.mine - pair.other):
            return None
        ratios.append(ratio)
    middle = float(np.median(ratios)) if ratios else 0.0
    return middle if ratios and all(abs(r - middle) <= ALIKE * abs(middle) for r in ratios) else None


def explains(guess: Array, wanted: Array, off: Array) -> bool:
    """Whether the guess comes to what is wanted, up to a small part of the difference."""
    return float(np.linalg.norm(wanted - guess)) < UNEXPLAINED * float(np.linalg.norm(off))
