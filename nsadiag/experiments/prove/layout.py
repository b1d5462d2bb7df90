"""The part of the one process's parameters that each rank holds: by placement, else by content at the start, else by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.experiments.prove.record import Array, Rank, Run

CLOSE = 1e-6  # of the largest element


@dataclass(frozen=True, kw_only=True)
class Part:
    """A rank's part of a parameter. None of the three: all of it."""

    name: str  # as the one process has it
    box: tuple[tuple[int, int], ...] | None = None
    run: tuple[int, int] | None = None
    rows: tuple[int, tuple[int, ...]] | None = None  # a dimension, and the indices in it

    def of(self, whole: Array) -> Array:
        """The part of a tensor that is laid out as the parameter is."""
        if self.box is not None:
            return whole[tuple(slice(start, start + size) for start, size in self.box)]
        if self.run is not None:
            return whole.reshape(-1)[self.run[0] : self.run[1]]
        return whole if self.rows is None else whole.take(self.rows[1], self.rows[0])


Parts = dict[tuple[int, str], Part]  # by rank, and name there


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`apart`: what starts from other values than in the one process; `unknown`: what it does not have."""

    parts: Parts
    apart: tuple[tuple[int, str], ...] = ()
    unknown: tuple[tuple[int, str], ...] = ()

    @property
    def is_split(self) -> bool:
        return any(part.box or part.run or part.rows for part in self.parts.values())


def layout(ranks: Run, alone: Run) -> Layout:
    """The layout of all ranks' parameters."""
    one = alone.ranks[0]
    values = {name: one.numbers(row) for name, row in one.first.items()}
    parts: Parts = {}
    apart: list[tuple[int, str]] = []
    unknown: list[tuple[int, str]] = []
    for rank in ranks.ranks:
        mine = _Matching(rank, values)
        parts |= {(rank.number, name): part for name, part in mine.parts.items()}
        apart += [(rank.number, name) for name in mine.apart]
        unknown += [(rank.number, name) for name in mine.unknown]
    return Layout(parts=parts, apart=tuple(apart), unknown=tuple(unknown))


class _Matching:
    """One rank's parameters, matched with the one process's."""

    def __init__(self, rank: Rank, whole: dict[str, Array]) -> None:
        self._rank, self._whole = rank, whole
        self.parts: dict[str, Part] = {}
        self.apart: list[str] = []
        self.unknown: list[str] = []
        constant: list[Kept] = []
        for row in rank.first.values():
            mine = rank.numbers(row)
            if _is_placed(row):
                self._settle(row, mine, _placed(row))
            elif mine.size and np.ptp(mine) > 0:
                self._settle(row, mine, self._by_content(row, mine))
            else:
                constant.append(row)
        for row in constant:
            self._settle(row, rank.numbers(row), self._by_neighbour(row))

    def _settle(self, row: Kept, mine: Array, part: Part | None) -> None:
        if part is None:
            there = self._whole.get(row.name)
            if there is None or there.shape != mine.shape:
                self.unknown.append(row.name)
            elif row.step:
                # It thawed later, and was changed before: no other start.
                self.parts[row.name] = Part(name=row.name)
            else:
                self.apart.append(row.name)
        elif part.name not in self._whole:
            self.unknown.append(row.name)
        elif not is_close(mine.reshape(-1), part.of(self._whole[part.name]).reshape(-1)):
            self.apart.append(row.name)
        else:
            self.parts[row.name] = part

    def _by_content(self, row: Kept, mine: Array) -> Part | None:
        named = self._whole.get(row.name)
        if named is not None and is_close(mine, named):
            return Part(name=row.name)
        if named is not None and (found := _rows_of(mine, named)):
            return Part(name=row.name, rows=found)
        tail = row.name.rpartition(".")[2]
        others = sorted(self._whole.items(), key=lambda item: item[0].rpartition(".")[2] != tail)
        for name, whole in others:
            if is_close(mine, whole):
                return Part(name=name)
        for name, whole in others:
            if name.rpartition(".")[2] == tail and (found := _rows_of(mine, whole)):
                return Part(name=name, rows=found)
        return None

    def _by_neighbour(self, row: Kept) -> Part | None:
        """A constant says nothing of itself: as the others of its module, else by its name."""
        prefix, _, tail = row.name.rpartition(".")
        beside = [p for name, p in self.parts.items() if name.rpartition(".")[0] == prefix]
        name = row.name
        if beside and (moved := beside[0].name.rpartition(".")[0]) != prefix:
            name = f"{moved}.{tail}"
        whole = self._whole.get(name)
        if whole is None:
            return None
        if whole.shape == row.local:
            return Part(name=name)
        for part in beside:
            if part.rows and part.rows[0] == 0 and whole.ndim == len(row.local) and (len(part.rows[1]), *whole.shape[1:]) == row.local:  # fmt: skip
                return Part(name=name, rows=part.rows)
        found = _first_rows(row.local, whole.shape)
        return Part(name=name, rows=found) if found else None


def _is_placed(row: Kept) -> bool:
    """Whether torch says where it lies in the whole: a DTensor, or FSDP1's."""
    return row.at is not None or (row.run is not None and row.local != row.shape)


def _placed(row: Kept) -> Part:
    return Part(name=row.name, box=row.at, run=None if row.at is not None else row.run)


def is_close(a: Array, b: Array) -> bool:
    """Whether they are equal but for rounding."""
    if a.shape != b.shape:
        return False
    return not a.size or bool(np.abs(a - b).max() <= CLOSE * max(np.abs(b).max(), 1e-30))


def _rows_of(mine: Array, whole: Array) -> tuple[int, tuple[int, ...]] | None:
    """The dimension along which it is a part of the whole, and the indices there."""
    if mine.ndim != whole.ndim:
        return None
    other = [d for d in range(whole.ndim) if mine.shape[d] != whole.shape[d]]
    if len(other) != 1 or mine.shape[other[0]] > whole.shape[other[0]]:
        return None
    dimension = other[0]
    known: dict[bytes, list[int]] = {}
    for index, row in enumerate(np.moveaxis(whole, dimension, 0)):
        known.setdefault(np.ascontiguousarray(row).tobytes(), []).append(index)
    found: list[int] = []
    for row in np.moveaxis(mine, dimension, 0):
        places = known.get(np.ascontiguousarray(row).tobytes())
        if not places:
            return None
        found.append(places.pop(0) if len(places) > 1 else places[0])
    return dimension, tuple(found)


def _first_rows(local: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """Rows of constants: any will do."""
    other = [d for d in range(len(shape)) if len(local) == len(shape) and local[d] != shape[d]]
    if len(other) != 1 or local[other[0]] > shape[other[0]]:
        return None
    return other[0], tuple(range(local[other[0]]))
