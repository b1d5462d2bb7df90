"""The lines of our own code behind what a rule said: where it yielded, raised or returned, and what it was told on the way."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
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

from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition
from nsadiag.source.listing import row_lines, text_of

PACKAGE = Path(__file__).resolve().parents[1]
# The rooms whose functions a rule asks for facts, and the tables that these read; what lies between (the rules' own
# helpers, the case) is passed through.
ASKED = tuple(
    str(PACKAGE / room)
    for room in (
        "analysis/facts",
        "analysis/relations",
        "analysis/explain",
        "analysis/outliers.py",
        "source",
        "evidence/blocking.py",
    )
)
# Of these, what only reads: the source and its names, the rows of a table one by one.
READERS = tuple(str(PACKAGE / file) for file in ("source/model.py", "source/bindings.py"))
TABLE = str(PACKAGE / "evidence")
MOST_ANSWERS = 12  # of one function
MOST_ASKED = 3  # calls that were given the same answer, each by its arguments
OTHERS = "other answers"
MOST_FIELDS = 4  # of a row, in a few words
LONGEST_ARGUMENT = 60
OF_CONSTANTS = "nsadiag.analysis.facts."
TABLES = ("nsadiag.evidence.blocking",)  # modules whose rows are named by their lines
# The same in every call, or too much for a few words.
NOT_SHOWN = ("self", "context", "case", "cell", "scope", "program", "known", "assumed", "depth", "groups")

Tracer = Callable[[FrameType, str, Any], Any]


@dataclass
class Answer:
    """The value that a function returned to whoever asked it, its line, and the answers that it was given itself."""

    function: str
    line: str
    says: str
    asked: list[str] = field(default_factory=list)  # arguments, of each call that was given this answer
    times: int = 1
    because: list[Answer] = field(default_factory=list)

    def is_as(self, other: Answer) -> bool:
        """Whether another call was answered alike, from alike answers, whatever its arguments."""
        mine, others = (self.function, self.line, self.says), (other.function, other.line, other.says)
        pairs = zip(self.because, other.because, strict=False)
        return (
            mine == others
            and len(self.because) == len(other.because)
            and all(a.times == b.times and a.is_as(b) for a, b in pairs)
        )


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


def answers(run: Callable[[], object]) -> tuple[list[Answer], str | None]:
    """The values that functions of the mechanisms returned while `run` ran, in order: of those that it asked itself.

    Also the error by which our own record of them broke off, if it did.
    """
    found = _Answers()
    with _traced(found.trace) as errors:
        run()
    return found.of_the_rule, next(iter(errors), None)


def true_at(run: Callable[[], object]) -> tuple[str, ...]:
    """The lines of the innermost functions that answered "yes" while `run` ran."""
    return tuple(dict.fromkeys(each.line for each in _innermost_true(answers(run)[0])))


def _innermost_true(asked: list[Answer]) -> Iterator[Answer]:
    for each in asked:
        within = list(_innermost_true(each.because))
        yield from within or ([each] if each.says == "True" else [])


@functools.cache  # a judgement asks of some dozen files, thousands of times
def relative(file: str) -> str:
    """A source file of ours, from the folder that holds the package."""
    return Path(file).relative_to(PACKAGE.parent).as_posix() if PACKAGE in Path(file).parents else file


@contextmanager
def _traced(tracer: Tracer) -> Iterator[list[str]]:
    """Runs the tracer, which returns itself or None; yields its own errors.

    Python would raise such an error in the code that is traced, which is not at fault, and trace no further.
    """
    before, errors = sys.gettrace(), list[str]()

    def guarded(frame: FrameType, event: str, value: Any) -> Any:
        try:
            return guarded if not errors and tracer(frame, event, value) else None
        except Exception as error:
            errors.append(f"{error!r} at {raised_at(error)}")
            return None

    sys.settrace(guarded)
    try:
        yield errors
    finally:
        sys.settrace(before)


def _line(frame: FrameType) -> str:
    return f"{relative(frame.f_code.co_filename)}:{frame.f_lineno}"


class _Answers:
    """The calls under way, and what those that are over returned."""

    def __init__(self) -> None:
        self.of_the_rule: list[Answer] = []
        self._told: dict[FrameType, list[Answer]] = {}  # by call under way
        self._asked: dict[FrameType, str] = {}
        self._yielded: set[FrameType] = set()

    def trace(self, frame: FrameType, event: str, value: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(ASKED) or code.co_name.startswith(("<", "__")):
            return None
        if code.co_filename.startswith(READERS) or (
            code.co_filename.startswith(TABLE) and code.co_name.startswith("_")
        ):
            return None
        frame.f_trace_lines = False
        if event == "call" and frame not in self._told:
            self._told[frame], self._asked[frame] = [], _arguments(frame)
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
        because, asked = self._told.pop(frame), self._asked.pop(frame)
        answer = Answer(frame.f_code.co_name, _line(frame), says, [asked] if asked else [], because=because)
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
    """One row for calls of a function that were answered alike, and not too many rows of one function."""
    rows = [each for each in others if each.function == answer.function]
    if same := next((each for each in rows if each.is_as(answer)), None):
        same.times += 1
        same.asked += [
            each for each in answer.asked if each not in same.asked and len(same.asked) < MOST_ASKED
        ]
    elif len(rows) < MOST_ANSWERS:
        others.append(answer)
    elif rows[-1].says == OTHERS:
        rows[-1].times += 1
    else:
        others.append(Answer(answer.function, answer.line, OTHERS))


def _arguments(frame: FrameType) -> str:
    """Arguments of the call under way, in a few words, without those that tell nothing apart."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = {name: frame.f_locals[name] for name in names if name in frame.f_locals and name not in NOT_SHOWN}
    said = {name: SHORT.repr(value) for name, value in given.items() if value is not None}
    short = [f"{name}={_cut(value)}" if len(said) > 1 else _cut(value) for name, value in said.items()]
    return ", ".join(short[:MOST_FIELDS])


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


def _shown(value: Any) -> tuple[str, bool]:
    """A value in a few words, and whether it is empty."""
    if value is None or value is False:
        return str(value), True
    is_empty = hasattr(value, "__len__") and not len(value)
    return "nothing" if is_empty else SHORT.repr(value), is_empty
