"""The answers that a rule was given: by its own helpers, and by the facts, relations and tables that they asked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from nsadiag.analysis.tracing.lines import PACKAGE, line_in, traced
from nsadiag.analysis.tracing.words import NOT_SHOWN, arguments, named, shown
from nsadiag.source.decisions import Test, decisive_lines, function_of

RULES = str(PACKAGE / "analysis/rules")
# The rooms whose functions are recorded; what lies between (the case) is passed through.
ASKED = (
    RULES,
    *(
        str(PACKAGE / room)
        for room in (
            "analysis/facts",
            "analysis/relations",
            "analysis/explain",
            "analysis/outliers.py",
            "source",
            "evidence/blocking.py",
        )
    ),
)
# Of these, what only reads: the source and its names, the rows of a table one by one.
READERS = tuple(str(PACKAGE / file) for file in ("source/model.py", "source/bindings.py"))
TABLE = str(PACKAGE / "evidence")
MOST_ANSWERS = 12  # of one function
MOST_ASKED = 3  # calls that were given the same answer, each by its arguments
OTHERS = "other answers"


@dataclass
class Answer:
    """The value that a function returned to whoever asked it, its line, and the answers that it was given itself.

    In rules, also each condition that was evaluated, with its outcome: `function` is its text, `asked` what it read.
    """

    function: str
    line: str
    says: str
    asked: list[str] = field(default_factory=list)  # arguments, of each call that was given this answer
    times: int = 1
    because: list[Answer] = field(default_factory=list)
    decisive: bool = True  # the end of whoever asked depends on it
    is_condition: bool = False
    called_at: set[int] = field(default_factory=set)  # lines of whoever asked

    def is_as(self, other: Answer) -> bool:
        """Whether another call was answered alike, from alike answers, whatever its arguments."""
        mine, others = (self.function, self.line, self.says), (other.function, other.line, other.says)
        pairs = zip(self.because, other.because, strict=False)
        return (
            mine == others
            and len(self.because) == len(other.because)
            and all(a.times == b.times and a.is_as(b) for a, b in pairs)
        )


def answers(run: Callable[[], object]) -> tuple[list[Answer], str | None]:
    """The values that functions of the mechanisms returned while `run` ran, in order: of those that it called itself.

    Also the error by which our own record of them broke off, if it did.
    """
    found = _Answers()
    with traced(found.trace) as errors:
        run()
    return found.of_the_run, next(iter(errors), None)


def true_at(run: Callable[[], object]) -> tuple[str, ...]:
    """The lines of the innermost functions that answered "yes" while `run` ran."""
    return tuple(dict.fromkeys(each.line for each in _innermost_true(answers(run)[0])))


def _innermost_true(asked: list[Answer]) -> Iterator[Answer]:
    for each in asked:
        within = list(_innermost_true(each.because))
        yield from within or ([each] if each.says == "True" else [])


class _Answers:
    """The calls under way, and what those that are over returned."""

    def __init__(self) -> None:
        self.of_the_run: list[Answer] = []
        self._told: dict[FrameType, list[Answer]] = {}  # by call under way
        self._asked: dict[FrameType, str] = {}
        self._yielded: set[FrameType] = set()
        self._testing: dict[FrameType, Test] = {}

    def trace(self, frame: FrameType, event: str, value: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(ASKED) or code.co_name.startswith(("<", "__")):
            return None
        if code.co_filename.startswith(READERS) or (
            code.co_filename.startswith(TABLE) and code.co_name.startswith("_")
        ):
            return None
        frame.f_trace_lines = code.co_filename.startswith(RULES)
        if event == "call" and frame not in self._told:
            self._told[frame], self._asked[frame] = [], arguments(frame)
        if frame.f_trace_lines and event in ("line", "return"):
            self._evaluated(frame, value, over=event == "return")
        if event == "return":
            self._returned(frame, value)
        return self.trace

    def _evaluated(self, frame: FrameType, value: Any, *, over: bool) -> None:
        """Records the condition that the call has just left, and enters the one in whose line it is."""
        left, here = self._testing.get(frame), frame.f_lineno
        if left and here in left.lines and not over:
            return  # it goes on in its next line
        self._testing.pop(frame, None)
        if left:
            says = str(here in left.body) if left.body else shown(value)
            _add(self._told[frame], _condition(frame, left, says))
        if (function := function_of(frame.f_code)) and (test := function.tests.get(here)):
            self._testing[frame] = test

    def _returned(self, frame: FrameType, value: Any) -> None:
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            if value is not None:  # it yields, and goes on later
                self._yielded.add(frame)
                return
            says = "some" if frame in self._yielded else "nothing"
        else:
            says = shown(value)
        because, asked = self._told.pop(frame), self._asked.pop(frame)
        self._testing.pop(frame, None)
        _mark(because, frame.f_code, frame.f_lineno)
        answer = Answer(frame.f_code.co_name, line_in(frame), says, [asked] if asked else [], because=because)
        others, line = self._asking(frame)
        answer.called_at.add(line)
        _add(others, answer)

    def _asking(self, frame: FrameType) -> tuple[list[Answer], int]:
        """The answers to the nearest call under way that this one serves, and the line at which that is."""
        caller = frame.f_back
        while caller is not None:
            if caller in self._told:
                return self._told[caller], caller.f_lineno
            caller = caller.f_back
        return self.of_the_run, 0


def _mark(asked: list[Answer], code: CodeType, ended: int) -> None:
    """Tells the answers on which the end of the call depends from the others."""
    if function := function_of(code):
        lines = decisive_lines(function, ended)
        for each in asked:
            each.decisive = not lines.isdisjoint(each.called_at)


def _condition(frame: FrameType, test: Test, says: str) -> Answer:
    read = named(
        {".".join(c): value for c in test.reads if c[-1] not in NOT_SHOWN for value in _read(frame, c)}
    )
    line = f"{line_in(frame).rpartition(':')[0]}:{test.line}"
    return Answer(
        test.text, line, says, [read] if read else [], is_condition=True, called_at=set(test.lines)
    )  # fmt: skip


def _read(frame: FrameType, chain: tuple[str, ...]) -> Iterator[Any]:
    """The value of a name and its attributes, where no code of ours has to run for it."""
    name, *attributes = chain
    if name not in frame.f_locals:
        return
    value = frame.f_locals[name]
    for each in attributes:
        if each not in getattr(value, "__dict__", {}):
            return
        value = vars(value)[each]
    yield value


def _add(others: list[Answer], answer: Answer) -> None:
    """One row for calls of a function that were answered alike, and not too many rows of one function."""
    rows = [each for each in others if each.function == answer.function]
    if same := next((each for each in rows if each.is_as(answer)), None):
        same.times += 1
        same.called_at |= answer.called_at
        same.asked += [
            each for each in answer.asked if each not in same.asked and len(same.asked) < MOST_ASKED
        ]
    elif len(rows) < MOST_ANSWERS:
        others.append(answer)
    elif rows[-1].says == OTHERS:
        rows[-1].times += 1
    else:
        others.append(Answer(answer.function, answer.line, OTHERS, called_at=answer.called_at))
