"""`-k`: which cells an expression means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from nsadiag.errors import UsageError
from nsadiag.spec.cell import Cell

MOST_VALUES = 12  # of one axis that an error lists


def select(cells: list[Cell], expression: str) -> list[Cell]:
    """Cells that satisfy a `-k` expression of words with and, or, not and brackets, as in pytest.

    `layers=5` is a setting, whether the id says it or not; `layers=5,mode=ddp` a whole id; any other word is a part
    of the id.
    """
    chosen = [cell for cell in cells if _Expression(expression).holds(cell)]
    if not chosen:
        raise UsageError(f"-k {expression!r} selects no cell", _what_there_is(cells, expression))
    return chosen


def _what_there_is(cells: list[Cell], expression: str) -> str:
    """The axis that may have been meant, with its values; else all axes."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, value in cell.factors.items():
            values.setdefault(name, {})[value] = None
    listed = {name: f"{name}: {', '.join([*shown][:MOST_VALUES])}" for name, shown in values.items()}
    for word in re.findall(r"([^\s()=]+)=", expression):
        if word in values:
            return listed[word]
        near = difflib.get_close_matches(word, list(values), n=1, cutoff=0.6)
        if near:
            return f"did you mean {near[0]}? {listed[near[0]]}"
    return f"the axes are {'; '.join(listed.values())}"


class _Expression:
    """Recursive descent over words; an expression that does not parse is a UsageError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens: Iterator[str] = iter(())
        self._next: str | None = None

    def holds(self, cell: Cell) -> bool:
        self._tokens = iter(re.findall(r"[()]|[^\s()]+", self.text))
        self._advance()
        value = self._either(cell)
        if self._next is not None:
            self._fail()
        return value

    def _advance(self) -> str | None:
        current, self._next = self._next, next(self._tokens, None)
        return current

    def _either(self, cell: Cell) -> bool:
        value = self._both(cell)
        while self._next == "or":
            self._advance()
            value = self._both(cell) or value
        return value

    def _both(self, cell: Cell) -> bool:
        value = self._one(cell)
        while self._next == "and":
            self._advance()
            value = self._one(cell) and value
        return value

    def _one(self, cell: Cell) -> bool:
        token = self._advance()
        if token == "not":
            return not self._one(cell)
        if token == "(":
            value = self._either(cell)
            if self._advance() != ")":
                self._fail()
            return value
        if token in (None, ")", "and", "or"):
            self._fail()
        return _means(str(token), cell)

    def _fail(self) -> None:
        raise UsageError(f"-k: cannot read {self.text!r}", 'write for example -k "ddp and not layers=5"')


def _means(token: str, cell: Cell) -> bool:
    if "=" not in token:
        return token in cell.id
    # A whole setting such as layers=1 must not also match layers=12.
    return token in (cell.id, cell.name) if "," in token else token in cell.settings().values()
