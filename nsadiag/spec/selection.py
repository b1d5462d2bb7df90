"""`-k`: which cells an expression means."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.errors import UsageError
from nsadiag.spec.cell import Cell


def select(cells: list[Cell], expression: str) -> list[Cell]:
    """Cells that satisfy a `-k` expression of words with and, or, not and brackets, as in pytest.

    `layers=5` is a setting, whether the id says it or not; `layers=5,mode=ddp` a whole id; any other word is a part
    of the id.
    """
    chosen = [cell for cell in cells if _Expression(expression).holds(cell)]
    if not chosen:
        raise UsageError(
            f"-k {expression!r} selects no cell", f"a cell is called, for example, {cells[0].id}"
        )
    return chosen


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
