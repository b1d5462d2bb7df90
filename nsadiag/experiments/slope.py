"""The growth of cost along an axis: a power law fitted to the measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_POINTS = 3
MARGIN = 2.5  # a step is noisy, and a power law through few points is not exact: less than this is no jump


@dataclass(frozen=True, kw_only=True)
class Slope:
    """Seconds a step: factor × value ** exponent."""

    factor: float
    exponent: float
    points: int

    def at(self, value: float) -> float:
        return float(self.factor * value**self.exponent)

    def reaches(self, seconds: float) -> float | None:
        """The value at which a step takes so long; None where it never does."""
        if self.exponent <= 0 or self.factor <= 0:
            return None
        return float((seconds / self.factor) ** (1 / self.exponent))


def fitted(points: Sequence[tuple[float | None, float | None]]) -> Slope | None:
    """The curve in logarithms, of points with value and cost above 0; None where they are too few to draw one."""
    known = sorted({(x, y) for x, y in points if x and y and x > 0 and y > 0})
    if len({x for x, _ in known}) < MIN_POINTS:
        return None
    line = statistics.linear_regression([math.log(x) for x, _ in known], [math.log(y) for _, y in known])
    return Slope(factor=math.exp(line.intercept), exponent=line.slope, points=len(known))
