"""A run's record of its first steps, as its ranks left it (`evidence/rehearsal/proof.py`)."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nsadiag.evidence.documents.files import open_evidence
from nsadiag.evidence.documents.process import Meta
from nsadiag.evidence.documents.types import read_rows, read_value
from nsadiag.evidence.layout import RankDir, RunDir
from nsadiag.evidence.rehearsal.proof import Kept

Array = npt.NDArray[np.float64]
STORED = ("f4", "f8", "i8", "i4", "i2", "i1", "u1")


class Rank:
    """One process of a run."""

    def __init__(self, number: int, directory: RankDir, rows: Iterable[Kept]) -> None:
        self.number = number
        self._data = directory.proof_data
        self._directory, self._all = directory, tuple(rows)
        self._rows: dict[tuple[str, int], list[Kept]] = defaultdict(list)
        for row in self._all:
            self._rows[row.what, row.step].append(row)

    def later(self, steps: int) -> Rank:
        """The same from that step on, which becomes the first."""
        rows = [dataclasses.replace(row, step=row.step - steps) for row in self._all if row.step >= steps]
        return Rank(self.number, self._directory, rows)

    def all_of(self, what: str) -> list[Kept]:
        """Lines of that kind, of all steps."""
        return [row for row in self._all if row.what == what]

    def rows(self, what: str, step: int) -> list[Kept]:
        """Lines of that kind, of that step."""
        return self._rows.get((what, step), [])

    def named(self, what: str, step: int) -> dict[str, Kept]:
        """The same, by name."""
        return {row.name: row for row in self.rows(what, step)}

    @cached_property
    def steps(self) -> int:
        """Number of optimizers' steps on record."""
        return sum(what == "step" for what, _ in self._rows)

    @cached_property
    def notes(self) -> set[str]:
        """Those of all steps."""
        return {note for s in range(self.steps) for row in self.rows("step", s) for note in row.notes}

    @cached_property
    def first(self) -> dict[str, Kept]:
        """Each parameter, as it was when an optimizer first held it."""
        found: dict[str, Kept] = {}
        for step in range(self.steps):
            for row in self.rows("parameter", step):
                found.setdefault(row.name, row)
        return found

    def tensor(self, row: Kept) -> npt.NDArray[np.generic]:
        """The values that were stored with the line. Raises OSError and ValueError where it is not there."""
        if row.stored not in STORED or (not row.local and row.local != ()):
            raise ValueError(f"{row.name} was not stored")
        dtype, count = np.dtype("<" + row.stored), math.prod(row.local)
        with open_evidence(self._data) as file:
            file.seek(row.offset)
            raw = file.read(count * dtype.itemsize)
        return np.frombuffer(raw, dtype, count).reshape(row.local)

    def numbers(self, row: Kept) -> Array:
        """The same in double precision."""
        return self.tensor(row).astype(np.float64)


class Run:
    """All ranks of a run."""

    def __init__(self, directory: Path) -> None:
        run = RunDir(path=directory)
        self.directory = directory
        read = {rank.rank: (rank, read_rows(Kept, rank.proof)) for rank in run.ranks()}
        self.ranks = [Rank(number, rank, rows) for number, (rank, rows) in sorted(read.items()) if rows]
        metas = [read_value(Meta, rank.meta) for rank in run.ranks()]
        self.world_size = max((meta.world_size for meta in metas if meta), default=0)

    def only(self, number: int) -> Run:
        """One rank of it, as a run of its own."""
        found = copy.copy(self)
        found.ranks, found.world_size = [rank for rank in self.ranks if rank.number == number], 1
        return found

    def later(self, steps: int) -> Run:
        """The same from that step on."""
        found = copy.copy(self)
        found.ranks = [rank.later(steps) for rank in self.ranks]
        return found

    @property
    def steps(self) -> int:
        """That all ranks have on record."""
        return min((rank.steps for rank in self.ranks), default=0)

    @property
    def is_whole(self) -> bool:
        """Whether every rank left a record."""
        return bool(self.ranks) and len(self.ranks) == self.world_size

    @property
    def notes(self) -> set[str]:
        return {note for rank in self.ranks for note in rank.notes}

    @property
    def precisions(self) -> frozenset[str]:
        """Floating types of what its modules put out, and of its parameters."""
        kinds = ("output", "parameter")
        rows = (row for rank in self.ranks for what in kinds for row in rank.rows(what, 0))
        return frozenset(row.dtype for row in rows if "float" in row.dtype)
