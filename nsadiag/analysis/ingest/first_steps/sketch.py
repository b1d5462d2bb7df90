"""Sketches of tensors as ranks wrote them, and what their differences tell (worker/probes/correctness/sketches.py makes them)."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """Linear: sketches of the parts of a tensor add up to that of the whole."""

    buckets: tuple[float, ...]
    square: float  # the sum of squares, exact

    @classmethod
    def of(cls, row: Any) -> Sketch | None:
        """From a row of parity.jsonl; None where the tensor held infinities, or no numbers."""
        if not isinstance(row, list) or len(row) < 2:
            return None
        numbers = [*map(float, row)]
        return (
            cls(buckets=tuple(numbers[:-1]), square=numbers[-1]) if all(map(math.isfinite, numbers)) else None
        )

    @property
    def norm(self) -> float:
        return math.sqrt(max(self.square, 0.0))

    def times(self, factor: float) -> Sketch:
        return Sketch(buckets=tuple(each * factor for each in self.buckets), square=self.square * factor**2)

    def distance(self, other: Sketch) -> float:
        """The distance of the two tensors: within a quarter or so, and exactly 0 for equal ones."""
        return math.dist(self.buckets, other.buckets)

    def ratio(self, other: Sketch) -> float | None:
        """The factor that takes the other tensor closest to this one."""
        length = dot(other.buckets, other.buckets)
        return dot(self.buckets, other.buckets) / length if length > 0 else None


def dot(one: Iterable[float], other: Iterable[float]) -> float:
    """The sum of the products, number by number."""
    return math.fsum(map(operator.mul, one, other))


def total(sketches: Sequence[Sketch]) -> Sketch:
    """The sketch of parts that do not overlap."""
    buckets = tuple(map(math.fsum, zip(*(s.buckets for s in sketches), strict=True)))
    return Sketch(buckets=buckets, square=sum(s.square for s in sketches))


def mean(sketches: Sequence[Sketch]) -> Sketch:
    """The sketch of several tensors of one size: its norm is that of the sketch, since squares of sums are not on record."""
    buckets = tuple(map(statistics.fmean, zip(*(s.buckets for s in sketches), strict=True)))
    return Sketch(buckets=buckets, square=dot(buckets, buckets))


def spread(sketches: Iterable[Sketch]) -> float:
    """The largest distance from the first."""
    first, *others = sketches
    return max((first.distance(other) for other in others), default=0.0)
