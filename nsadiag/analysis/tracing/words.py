"""Values in a few words, as a trace shows them."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from reprlib import Repr
from types import FrameType
from typing import Any

from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition
from nsadiag.source.listing import row_lines, text_of

MOST_FIELDS = 4  # of a row
LONGEST_ARGUMENT = 60
OF_CONSTANTS = "nsadiag.analysis.facts."
TABLES = ("nsadiag.evidence.blocking",)  # modules whose rows are named by their lines
# The same in every call, or too much for a few words.
NOT_SHOWN = ("self", "context", "case", "cell", "scope", "program", "known", "assumed", "depth", "groups")


def arguments(frame: FrameType) -> str:
    """Arguments of the call under way, in a few words, without those that tell nothing apart."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = {name: frame.f_locals[name] for name in names if name in frame.f_locals and name not in NOT_SHOWN}
    said = {name: SHORT.repr(value) for name, value in given.items() if value is not None}
    short = [f"{name}={_cut(value)}" if len(said) > 1 else _cut(value) for name, value in said.items()]
    return ", ".join(short[:MOST_FIELDS])


def named(values: Mapping[str, Any]) -> str:
    """`what=None, len(rows)=3`."""
    return ", ".join(f"{name}={_cut(SHORT.repr(value))}" for name, value in values.items())


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_ARGUMENT else f"{text[: LONGEST_ARGUMENT - 3]}..."


def _constant(value: object) -> str | None:
    """The name of a constant of the modules that a rule asks."""
    modules = (module for name, module in sys.modules.items() if name.startswith(OF_CONSTANTS))
    return next((key for module in modules for key, each in vars(module).items() if each is value), None)


class _Short(Repr):
    """Values in a few words: ranks by their numbers, and of other rows what comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 3
        self.maxstring = 60

    def repr_Pattern(self, x: re.Pattern[str], level: int) -> str:
        return _constant(x) or self.repr_instance(x, level)

    def repr_instance(self, x: Any, level: int) -> str:
        if hasattr(x, "columns"):
            return f"{len(x)} rows"
        if isinstance(x, float | bool | Enum | None):
            return f"{x:.6g}" if isinstance(x, float) else str(x)
        if (expression := text_of(x)) is not None:
            return f"`{expression}`"
        if isinstance(x, Place | Condition):
            return _of_source(x)
        # Of what holds all that a rank left behind, its number; of one fact of a rank, what comes first.
        number = getattr(x, "rank", None)
        if isinstance(number, int) and (hasattr(x, "captures") or not dataclasses.is_dataclass(x)):
            return f"rank {number}"
        if not dataclasses.is_dataclass(x) or level <= 0:
            return f"rank {number}" if isinstance(number, int) else f"a {type(x).__name__}"
        known = ((field.name, getattr(x, field.name)) for field in dataclasses.fields(x) if field.repr)
        said = [f"{name}={self.repr1(value, level - 1)}" for name, value in known if not _is_nothing(value)]
        row = row_lines(type(x).__module__).get(id(x)) if type(x).__module__ in TABLES else None
        at = f" {type(x).__module__.replace('.', '/')}.py:{row} " if row else ""
        return f"{type(x).__name__}{at}({', '.join(said[:MOST_FIELDS])})"


def _is_nothing(value: Any) -> bool:
    # An empty tuple is an answer: nobody is missing.
    return value is None or value == ""


def _of_source(x: Place | Condition) -> str:
    at = f"{Path(x.file).name}:{x.line}"
    return f"`{x.kind} {x.test}` ({at}, {x.provenance})" if isinstance(x, Condition) else at


SHORT = _Short()


def shown(value: Any) -> str:
    """A value in a few words."""
    if value is None or value is False:
        return str(value)
    return "nothing" if hasattr(value, "__len__") and not len(value) else SHORT.repr(value)
