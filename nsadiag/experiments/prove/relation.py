"""The relation of what several ranks hold to what one process holds: a copy, a cut, a part of a sum, or none of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nsadiag.experiments.prove.record import Array

MOST_ROWS = 512  # that are matched one by one

# `equal`: each rank has all of it; `cut`: the ranks' pieces, along one dimension, are the whole; `partial`: their sum is;
# `unknown`: shapes that say nothing.
Kind = Literal["equal", "cut", "partial", "other", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Relation:
    """`factor`: times the one process's; of a sum, that of the sum."""

    kind: Kind
    factor: float = 1.0

    def explains(self, ranks: int, size: int) -> bool:
        """Whether one process's value can be the ranks' one, as it is: a sum of few numbers has some factor always."""
        if self.kind in ("other", "unknown"):
            return self.kind == "unknown"
        if self.kind == "partial":
            return size > 1 or _near(self.factor, 1) or _near(self.factor, ranks)
        return _near(self.factor, 1)


UNKNOWN, OTHER = Relation(kind="unknown"), Relation(kind="other")


def relation(parts: Sequence[Array], whole: Array, tolerance: float = 1e-4) -> Relation:
    """The first that holds."""
    if not whole.size or not all(np.isfinite(each).all() for each in (*parts, whole)):
        return UNKNOWN
    if all(part.shape == whole.shape for part in parts):
        return _of_one_shape(parts, whole, tolerance)
    if any(part.ndim != whole.ndim for part in parts) or not all(part.size for part in parts):
        return UNKNOWN
    other = {d for part in parts for d in range(whole.ndim) if part.shape[d] != whole.shape[d]}
    if len(other) != 1 or len({part.ndim for part in parts}) != 1:
        return UNKNOWN
    return _cut(parts, whole, other.pop(), tolerance)


def joined(parts: Sequence[Sequence[Array]], wholes: Sequence[Array], tolerance: float = 1e-4) -> Relation:
    """The same of values that a line made several times in a step: ranks go through a batch in other pieces than one process does."""
    every = [each for rank in parts for each in rank]
    if {each.ndim for each in every} != {wholes[0].ndim} or not wholes[0].ndim:
        if {each.size for each in [*every, *wholes]} != {1}:
            return UNKNOWN
        return _of_one_shape([np.sum(rank, axis=0) for rank in parts], np.sum(wholes, axis=0), tolerance)
    if len({each.shape[1:] for each in [*every, *wholes]}) != 1:
        return UNKNOWN
    return _cut([np.concatenate(rank) for rank in parts], np.concatenate(wholes), 0, tolerance)


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) < 1e-3 * abs(wanted)


def _close(mine: Array, wanted: Array, tolerance: float) -> bool:
    return float(np.linalg.norm(mine - wanted)) <= tolerance * float(np.linalg.norm(wanted))


def _ratio(mine: Array, whole: Array) -> float:
    square = float((whole**2).sum())
    return float((mine * whole).sum()) / square if square else 1.0


def _of_one_shape(parts: Sequence[Array], whole: Array, tolerance: float) -> Relation:
    if all(_close(part, parts[0], tolerance) for part in parts):
        factor = _ratio(parts[0], whole)
        if not whole.any() and parts[0].any():
            return OTHER
        return Relation(kind="equal", factor=factor) if _close(parts[0], factor * whole, tolerance) else OTHER
    total = np.sum(parts, axis=0)
    factor = _ratio(total, whole)
    if whole.any() and factor > 0 and _close(total, factor * whole, 10 * tolerance):
        return Relation(kind="partial", factor=factor)
    return OTHER


def _cut(parts: Sequence[Array], whole: Array, dimension: int, tolerance: float) -> Relation:
    rows = [np.moveaxis(part, dimension, 0).reshape(part.shape[dimension], -1) for part in parts]
    wanted = np.moveaxis(whole, dimension, 0).reshape(whole.shape[dimension], -1)
    mine, copies = np.concatenate(rows), 1
    if len(mine) % len(wanted) == 0:
        copies = len(mine) // len(wanted)
    if len(mine) != copies * len(wanted):
        return OTHER
    size = float(np.linalg.norm(wanted)) * float(np.sqrt(copies))
    factor = float(np.linalg.norm(mine)) / size if size else 1.0
    if factor <= 0:
        return OTHER if wanted.any() else Relation(kind="cut")
    if abs(factor - 1) < tolerance:
        factor = 1.0
    aim = np.concatenate([wanted] * copies) * factor
    if _close(mine, aim, tolerance) or (len(mine) <= MOST_ROWS and _matched(mine, aim, tolerance)):
        return Relation(kind="cut", factor=factor)
    return OTHER


def _matched(mine: Array, wanted: Array, tolerance: float) -> bool:
    """Whether they are the same rows in another order."""
    bound = 10 * tolerance * float(np.linalg.norm(wanted)) / np.sqrt(len(wanted))
    left = wanted.copy()
    for row in mine:
        away = np.linalg.norm(left - row, axis=1)
        nearest = int(away.argmin())
        if away[nearest] > bound:
            return False
        left = np.delete(left, nearest, axis=0)
    return True
