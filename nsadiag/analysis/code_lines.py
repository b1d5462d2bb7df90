"""The lines of our own code behind what a rule said: where it yielded, raised or returned, and what it was told on the way."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from reprlib import Repr
from types import CodeType, FrameType, GeneratorType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
# The rooms whose functions a rule asks for facts; what lies between (the rules' own helpers, the case) is passed through.
ASKED = tuple(
    str(PACKAGE / room)
    for room in ("analysis/facts", "analysis/relations", "analysis/explain", "analysis/outliers.py", "source")
)
MOST_ANSWERS = 12  # of one function
MOST_FIELDS = 4  # of a row, in a few words

Tracer = Callable[[FrameType, str, Any], Any]


@dataclass
class Answer:
    """The value that a function returned to whoever asked it, its line, and the answers that it was given itself."""

    function: str
    line: str
    says: str
    times: int = 1
    because: list[Answer] = field(default_factory=list)


def suspended_at(generator: Iterator[Any]) -> str:
    """The line at which a generator yielded, and those of the generators that it yields from."""
    lines = []
    inner: object = generator
    while isinstance(inner, GeneratorType):
        if inner.gi_frame is not None:
            lines.append(f"{relative(inner.gi_code.co_filename)}:{inner.gi_frame.f_lineno}")
        inner = inner.gi_yieldfrom
    return " > ".join(lines)


def raised_at(error: Exception) -> str:
    """The lines of the rule and of what it called, down to the one that raised."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours, which called the rule
    return " > ".join(f"{relative(frame.filename)}:{frame.lineno}" for frame in frames)


def returned_at(code: CodeType | None, run: Callable[[], object]) -> str:
    """The last line at which a function of that code returned, while `run` runs."""
    found = ""

    def in_frame(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal found
        if frame.f_code is not code:
            return None
        if event == "return":
            found = _line(frame)
        return in_frame

    with _traced(in_frame):
        run()
    return found


def answers(run: Callable[[], object]) -> list[Answer]:
    """The values that functions of the mechanisms returned while `run` ran, in order: of those that it asked itself."""
    found = _Answers()
    with _traced(found.trace):
        run()
    return found.of_the_rule


def relative(file: str) -> str:
    """A source file of ours, from the folder that holds the package."""
    return Path(file).relative_to(PACKAGE.parent).as_posix() if PACKAGE in Path(file).parents else file


@contextmanager
def _traced(tracer: Tracer) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(before)


def _line(frame: FrameType) -> str:
    return f"{relative(frame.f_code.co_filename)}:{frame.f_lineno}"


class _Answers:
    """The calls under way, and what those that are over returned."""

    def __init__(self) -> None:
        self.of_the_rule: list[Answer] = []
        self._told: dict[FrameType, list[Answer]] = {}  # by call under way
        self._yielded: set[FrameType] = set()

    def trace(self, frame: FrameType, event: str, value: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(ASKED) or code.co_name.startswith(("<", "__")):
            return None
        frame.f_trace_lines = False
        self._told.setdefault(frame, [])
        if event == "return":
            self._returned(frame, value)
        return self.trace

    def _returned(self, frame: FrameType, value: Any) -> None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            if value is not None:  # it yields, and goes on later
                self._yielded.add(frame)
                return
            says = "some" if frame in self._yielded else "nothing"
        else:
            says = _shown(value)[0]
        because = self._told.pop(frame)
        answer = Answer(function=frame.f_code.co_name, line=_line(frame), says=says, because=because)
        _add(self._asking(frame), answer)

    def _asking(self, frame: FrameType) -> list[Answer]:
        """The answers to the nearest call under way that this one serves."""
        caller = frame.f_back
        while caller is not None:
            if caller in self._told:
                return self._told[caller]
            caller = caller.f_back
        return self.of_the_rule


def _add(others: list[Answer], answer: Answer) -> None:
    """One row for the same function with the same answer, and not too many of one function."""
    same = [each for each in others if each.function == answer.function]
    for each in same:
        if (each.line, each.says) == (answer.line, answer.says) or len(same) >= MOST_ANSWERS:
            each.times += 1
            return
    others.append(answer)


class _Short(Repr):
    """Values in a few words: ranks by their numbers, and of other rows what comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 3
        self.maxstring = 60

    def repr_instance(self, x: Any, level: int) -> str:
        if hasattr(x, "columns"):
            return f"{len(x)} rows"
        if isinstance(number := getattr(x, "rank", None), int):
            return f"rank {number}"
        if isinstance(x, float | bool | Enum):
            return f"{x:.6g}" if isinstance(x, float) else str(x)
        if not dataclasses.is_dataclass(x) or level <= 0:
            return f"a {type(x).__name__}"
        known = ((field.name, getattr(x, field.name)) for field in dataclasses.fields(x) if field.repr)
        said = [f"{name}={self.repr1(value, level - 1)}" for name, value in known if value is not None]
        return f"{type(x).__name__}({', '.join(said[:MOST_FIELDS])})"


SHORT = _Short()


def _shown(value: Any) -> tuple[str, bool]:
    """A value in a few words, and whether it is empty."""
    if value is None or value is False:
        return str(value), True
    is_empty = hasattr(value, "__len__") and not len(value)
    return "nothing" if is_empty else SHORT.repr(value), is_empty
