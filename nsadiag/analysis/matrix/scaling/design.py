"""Rows of a design matrix: a constant, sizes as logarithms or products, other factors as offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nsadiag.analysis.matrix.scaling.points import Point

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Design:
    """The columns of the design; made from the points of one fit, applied to any other point."""

    sizes: tuple[str, ...]  # with at least two values
    centres: Mapping[str, float]  # of the logarithms, so that columns are comparable
    # factor and label, one column each; the first label of a factor has none
    kinds: tuple[tuple[str, str], ...]
    known: Mapping[str, frozenset[str]]
    fixed: Mapping[str, float]  # sizes with one value only
    beside: bool

    @classmethod
    def of(cls, points: Sequence[Point]) -> Design:
        names = list(dict.fromkeys(name for p in points for name in p.sizes))
        values = {name: [p.sizes[name] for p in points if name in p.sizes] for name in names}
        varied = tuple(name for name in names if len(set(values[name])) > 1)
        labels = {
            name: list(dict.fromkeys(p.kinds[name] for p in points if name in p.kinds))
            for name in dict.fromkeys(name for p in points for name in p.kinds)
        }
        crowded = sum(p.beside > 0.5 for p in points)
        return cls(
            sizes=varied,
            centres={name: float(np.mean(np.log(values[name]))) for name in varied},
            kinds=tuple((name, label) for name, known in labels.items() for label in known[1:]),
            known={name: frozenset(known) for name, known in labels.items()},
            fixed={name: values[name][0] for name in names if name not in varied},
            # What neighbours cost can only be told where some had them and some had none.
            beside=min(crowded, len(points) - crowded) >= 3,
        )

    def covers(self, point: Point) -> bool:
        """Whether the point has no value of which these points know nothing."""
        return (
            all(point.kinds.get(name) in known for name, known in self.known.items())
            and all(name in point.sizes for name in self.sizes)
            and all(point.sizes.get(name) == value for name, value in self.fixed.items())
        )

    def logs(self, points: Sequence[Point]) -> Array:
        """Logarithms of the sizes, a column each."""
        rows = [[np.log(p.sizes[name]) - self.centres[name] for name in self.sizes] for p in points]
        return np.array(rows, dtype=np.float64).reshape(len(points), len(self.sizes))

    def offsets(self, points: Sequence[Point]) -> Array:
        """A constant, a column for each other value of the other factors, and one for cells with neighbours."""
        columns = [np.ones(len(points))]
        columns += [
            np.array([float(p.kinds.get(name) == label) for p in points]) for name, label in self.kinds
        ]
        if self.beside:
            columns.append(np.array([p.beside for p in points]))
        return np.column_stack(columns)
