"""Equality of the data of two steps, however it was divided over ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Of lengths along some directions: what was computed beforehand, by a frozen encoder, differs in its last digits,
# and other data in the first.
NEAR, FAR = 1e-3, 5e-2

# Rows that hold floating numbers, rows; hashes by row and by element, or lengths: see the worker's `digest`.
Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Data:
    """Possible totals of each tensor, in the order of a forward."""

    tensors: tuple[tuple[Numbers, ...] | None, ...]

    @classmethod
    def of(cls, ranks: Sequence[Sequence[Numbers | None]], backwards: int) -> Data:
        """From what each rank wrote of a step."""
        if len({len(rows) for rows in ranks}) != 1:
            return cls(tensors=())
        return cls(tensors=tuple(_totals(list(each), backwards) for each in zip(*ranks, strict=True)))

    def against(self, other: Data) -> Literal["same", "other", "unknown"]:
        """`same` only if every tensor is."""
        if not self.tensors or len(self.tensors) != len(other.tensors):
            return "unknown"
        found = [_compared(a, b) for a, b in zip(self.tensors, other.tensors, strict=True)]
        if "other" in found:
            return "other"
        return "same" if set(found) == {"same"} else "unknown"


def _totals(ranks: list[Numbers | None], backwards: int) -> tuple[Numbers, ...] | None:
    """Ranks may read parts of one batch, some of them the same part (tensor parallelism), or all the same (a mask)."""
    rows = [tuple(map(float, row)) for row in ranks if row is not None]
    if len(rows) < len(ranks):
        return None
    distinct = list(dict.fromkeys(rows))
    totals = [_sum(rows), _sum(distinct)]
    if len(distinct) == 1:
        totals.append(tuple(number / max(backwards, 1) for number in distinct[0]))
    return tuple(dict.fromkeys(totals))


def _sum(rows: list[Numbers]) -> Numbers:
    return tuple(sum(column) for column in zip(*rows, strict=True))


def _compared(a: tuple[Numbers, ...] | None, b: tuple[Numbers, ...] | None) -> str:
    if a is None or b is None or bool(a[0][0]) != bool(b[0][0]):
        return "unknown"
    pairs = [(x, y) for x in a for y in b]
    if a[0][0]:
        apart = min(_apart(x, y) for x, y in pairs)
        return "same" if apart < NEAR else "other" if apart > FAR else "unknown"
    if any(x[:3] == y[:3] for x, y in pairs):
        return "same"
    # The same elements in other rows: sequences that ranks share out.
    return "unknown" if any(x[3] == y[3] for x, y in pairs) else "other"


def _apart(x: Numbers, y: Numbers) -> float:
    """Relative."""
    return max(abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in zip(x[1:], y[1:], strict=True))
