"""Sketches of tensors as ranks wrote them, and what their differences tell (worker/probes/correctness/sketches.py makes them)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """Linear: sketches of the parts of a tensor add up to that of the whole."""

    buckets: NDArray[np.float64]
    square: float  # the sum of squares, exact

    @classmethod
    def of(cls, row: Any) -> Sketch | None:
        """From a row of parity.jsonl; None where the tensor held infinities, or no numbers."""
        if not isinstance(row, list) or len(row) < 2:
            return None
        numbers = np.array(row, dtype=np.float64)
        return cls(buckets=numbers[:-1], square=float(numbers[-1])) if np.isfinite(numbers).all() else None

    @property
    def norm(self) -> float:
        return float(np.sqrt(max(self.square, 0.0)))

    def times(self, factor: float) -> Sketch:
        return Sketch(buckets=self.buckets * factor, square=self.square * factor**2)

    def distance(self, other: Sketch) -> float:
        """The distance of the two tensors: within a quarter or so, and exactly 0 for equal ones."""
        return float(np.linalg.norm(self.buckets - other.buckets))

    def ratio(self, other: Sketch) -> float | None:
        """The factor that takes the other tensor closest to this one."""
        length = float(self.buckets @ self.buckets), float(other.buckets @ other.buckets)
        return float(self.buckets @ other.buckets) / length[1] if length[1] > 0 else None


def total(sketches: Sequence[Sketch]) -> Sketch:
    """The sketch of parts that do not overlap."""
    return Sketch(
        buckets=np.sum([s.buckets for s in sketches], axis=0), square=float(sum(s.square for s in sketches))
    )


def mean(sketches: Sequence[Sketch]) -> Sketch:
    """The sketch of several tensors of one size: its norm is that of the sketch, since squares of sums are not on record."""
    buckets = np.mean([s.buckets for s in sketches], axis=0)
    return Sketch(buckets=buckets, square=float(buckets @ buckets))


def spread(sketches: Iterable[Sketch]) -> float:
    """The largest distance from the first."""
    first, *others = sketches
    return max((first.distance(other) for other in others), default=0.0)
