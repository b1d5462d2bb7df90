"""The values that each line of the user's made in the step that differs, on the ranks and in one process: the line at which they part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from nsadiag.evidence.rehearsal.proof import Kept
from nsadiag.evidence.rehearsal.reads import Read, reads_by_line
from nsadiag.experiments.prove.record import Array, Rank, Run
from nsadiag.experiments.prove.relation import UNKNOWN, Relation, joined, relation

Key = tuple[str, str]  # a line, and a name


@dataclass(eq=False)
class Made:
    """One value that a line made, on all ranks and in one process."""

    key: Key
    turn: int  # which time, in the step
    rows: list[Kept]  # by rank
    whole: Kept
    found: Relation = UNKNOWN
    pulled: Relation = UNKNOWN  # of its gradient
    size: int = 1

    @property
    def place(self) -> str:
        return self.key[0]

    @property
    def graded(self) -> bool:
        return self.whole.graded

    @property
    def backward(self) -> bool:
        return "backward" in self.whole.notes


@dataclass(frozen=True)
class Touch:
    """One change of a gradient or parameter, with the lines that were run, innermost first."""

    stack: tuple[str, ...]
    row: Kept = field(compare=False, repr=False)


class Statements:
    """Those of one step."""

    def __init__(self, ranks: Run, alone: Run, step: int, tolerance: float = 1e-4) -> None:
        self.ranks, self.one, self.step = ranks.ranks, alone.ranks[0], step
        self._tolerance = tolerance

    @cached_property
    def made(self) -> list[Made]:
        """All, in the order of the one process; what not all ranks made as often is not among them."""
        theirs = _by_key(self.one, self.step)
        mine = [_by_key(rank, self.step) for rank in self.ranks]
        found: list[Made] = []
        for key, rows in theirs.items():
            held = [each.get(key, []) for each in mine]
            if any(len(each) != len(held[0]) for each in held):
                continue
            if len(held[0]) == len(rows):
                found += self._compared(key, held, rows)
            elif held[0]:
                found.append(self._together(key, held, rows))
        return sorted(found, key=lambda each: each.whole.number)

    def _compared(self, key: Key, held: list[list[Kept]], rows: list[Kept]) -> Iterator[Made]:
        every = []
        for turn, whole in enumerate(rows):
            own = [each[turn] for each in held]
            found = Made(key, turn, own, whole)
            value = self._one(self.one, whole)
            found.size = value.size
            found.found = relation(
                [self._one(r, row) for r, row in zip(self.ranks, own, strict=True)], value, self._tolerance
            )
            found.pulled = self._of_gradient(own, whole)
            every.append(found)
        if len(rows) > 1 and any(each.found.kind == "other" for each in every):
            parts = [
                [self._one(rank, row) for row in each] for rank, each in zip(self.ranks, held, strict=True)
            ]
            together = joined(parts, [self._one(self.one, row) for row in rows], self._tolerance)
            if together.kind in ("cut", "equal"):
                for each in every:
                    each.found, each.pulled = together, UNKNOWN
        yield from every

    def _together(self, key: Key, held: list[list[Kept]], rows: list[Kept]) -> Made:
        """A value that ranks made more or less often than one process, as they went through their part of a batch."""
        parts = [[self._one(rank, row) for row in each] for rank, each in zip(self.ranks, held, strict=True)]
        wholes = [self._one(self.one, row) for row in rows]
        found = Made(key, 0, [each[0] for each in held], rows[0], size=wholes[0].size)
        together = joined(parts, wholes, self._tolerance)
        if together.kind != "other" or found.size == 1:
            found.found = together
        return found

    def _of_gradient(self, own: list[Kept], whole: Kept) -> Relation:
        theirs = self._pulled[-1].get(whole.number)
        mine = [held.get(row.number) for held, row in zip(self._pulled, own, strict=False)]
        if theirs is None or any(row is None for row in mine):
            return UNKNOWN
        parts = [rank.numbers(row) for rank, row in zip(self.ranks, mine, strict=True) if row is not None]
        return relation(parts, self.one.numbers(theirs), 10 * self._tolerance)

    @cached_property
    def _pulled(self) -> list[dict[int, Kept]]:
        """By number of the value: of each rank, and of the one process."""
        return [
            {row.number: row for row in each.rows("pulled", self.step)} for each in (*self.ranks, self.one)
        ]

    def arrived(self, made: Made) -> int:
        """The place of its gradient in the one process's record, which is in the order of time."""
        row = self._pulled[-1].get(made.whole.number)
        return row.offset if row is not None else -1

    def _one(self, rank: Rank, row: Kept) -> Array:
        if row.stored:
            with np.errstate(invalid="ignore"):  # of memory that nobody has written to
                return rank.numbers(row)
        return np.array(np.nan if row.value is None else row.value)

    def same_before(self, made: Made) -> Made:
        """The first value with the same content on all ranks: where it comes from."""
        want = [self._one(rank, row) for rank, row in zip(self.ranks, made.rows, strict=True)]
        if made.size < 2 and not made.whole.stored:
            return made
        for each in self.made:
            if each.whole.number >= made.whole.number:
                break
            if each.size == made.size and all(
                row.local == mine.local and np.array_equal(self._one(rank, row), wanted)
                for rank, row, mine, wanted in zip(self.ranks, each.rows, made.rows, want, strict=True)
            ):
                return each
        return made

    @property
    def parted(self) -> str:
        """The first line whose value carries a gradient, and which some ranks did not come to."""
        mine = [_by_key(rank, self.step) for rank in self.ranks]
        found = [
            (row.number, key[0])
            for each in mine
            for key, rows in each.items()
            for row in rows[:1]
            if row.graded and not all(key in other for other in mine)
        ]
        return min(found)[1] if found else ""

    def touches(self, kind: str) -> list[dict[str, list[Touch]]]:
        """The changes of gradients or parameters by name, of each rank."""
        return [self._touches(rank, kind) for rank in self.ranks]

    def beside(self, name: str, kind: str, ranks: Sequence[Sequence[Touch]]) -> list[Array]:
        """The one process's value after each of these changes: where its line changes nothing there, what it had before."""
        left, held = list(self._touches(self.one, kind).get(name, [])), None
        found: list[Array | None] = []
        for touch in ranks[0]:
            at = next((n for n, each in enumerate(left) if each.stack[0] == touch.stack[0]), None)
            if at is not None:
                held, left = self.one.numbers(left[at].row), left[at + 1 :]
            found.append(held)
        return [each for each in found if each is not None]

    def _touches(self, rank: Rank, kind: str) -> dict[str, list[Touch]]:
        steps = (self.step,) if kind == "gradient" else (self.step, self.step + 1)
        named: dict[str, list[Touch]] = defaultdict(list)
        for row in (row for step in steps for row in rank.rows("touched", step)):
            if row.notes[0] == kind:
                named[row.name].append(Touch((row.place, *row.notes[1:]), row))
        return named

    def set_apart(self, kind: str) -> str:
        """The line by which a setting, a learning rate or which parameters are trained, is first another than one process has it."""
        whole = _settings(self.one, kind)
        for step in range(self.step + 2):
            for rank in self.ranks:
                mine = _settings(rank, kind)
                for name in sorted(mine.keys() | whole.keys()):
                    own, its = (_last(each.get(name, []), step) for each in (mine, whole))
                    latest = max(filter(None, (own, its)), key=lambda row: row.step, default=None)
                    if latest is not None and not _agree(own, its):
                        return (own if own is not None and own.step == latest.step else latest).place
        return ""

    def numbers(self) -> Iterator[tuple[str, str, list[float], float]]:
        """Numbers of all steps so far: line, name, of each rank, of the one process; the first time that the line ran."""
        firsts = [_firsts(rank, self.step) for rank in (*self.ranks, self.one)]
        for key, row in sorted(firsts[-1].items(), key=lambda item: item[1].number):
            held = [each.get(key) for each in firsts[:-1]]
            values = [row.value for row in held if row is not None and row.value is not None]
            if len(values) == len(self.ranks) and row.value is not None:
                yield key[0], key[1], values, row.value


def _settings(rank: Rank, kind: str) -> dict[str, list[Kept]]:
    found: dict[str, list[Kept]] = defaultdict(list)
    for row in rank.all_of("touched"):
        if row.notes[0] == kind:
            found[row.name].append(row)
    return found


def _last(rows: list[Kept], step: int) -> Kept | None:
    """As it is at the end of the step; None where nothing has changed it."""
    return next((row for row in reversed(rows) if row.step <= step), None)


def _agree(own: Kept | None, its: Kept | None) -> bool:
    if own is None or its is None or own.value is None or its.value is None:
        return False
    return abs(own.value - its.value) <= 1e-9 * abs(its.value)


def _by_key(rank: Rank, step: int) -> dict[Key, list[Kept]]:
    found: dict[Key, list[Kept]] = defaultdict(list)
    for row in rank.rows("value", step):
        found[row.place, row.name].append(row)
    return found


def _firsts(rank: Rank, step: int) -> dict[Key, Kept]:
    found: dict[Key, Kept] = {}
    for each in range(step + 1):
        for row in rank.rows("value", each):
            if not row.stored:
                found.setdefault((row.place, row.name), row)
    return found


def file_of(place: str) -> str:
    return place.rsplit(":", 2)[0]


def line_of(place: str) -> int:
    return int(place.rsplit(":", 2)[1])


class Reads:
    """The names that lines of the user's files read."""

    def __init__(self) -> None:
        self._files: dict[str, dict[int, tuple[Read, ...]]] = {}

    def at(self, place: str) -> tuple[str, ...]:
        file = file_of(place)
        if file not in self._files:
            try:
                self._files[file] = reads_by_line(Path(file).read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError):
                self._files[file] = {}
        return tuple(
            ".".join(name[:2]) if name[0] == "self" else name[0]
            for name in self._files[file].get(line_of(place), ())
        )
