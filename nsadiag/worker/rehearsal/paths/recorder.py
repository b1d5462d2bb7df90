"""Records the path of the main thread through the user's code, by the one trace function that Python has a place for."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from nsadiag.evidence.rehearsal.paths import WHAT, Word
from nsadiag.evidence.rehearsal.reads import Read, handled_ends, reads_by_line
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.introspection import loop_rounds
from nsadiag.worker.place import is_user_code, users_files
from nsadiag.worker.recorder import Recorder
from nsadiag.worker.rehearsal.paths.values import value_of
from nsadiag.worker.rehearsal.paths.words import Words

# Lines of one function between two calls: a tokenizer's loop would cost minutes, and tell nothing.
MOST_LINES = 4000
MOST_SOURCE = 1 << 20  # bytes of a file
LINE, ENTER, LEAVE, RAISED, CALL, NAME, VALUE, FOLDED = (int(each) << WHAT for each in Word)
# By these a loop over an iterator ends, and a generator is closed; they are exceptions only to a handler that catches them.
NO_EXCEPTIONS = (StopIteration, StopAsyncIteration, GeneratorExit)

# The names that each line reads, and the lines that handle an iterator's end.
_Lines = tuple[dict[int, tuple[Read, ...]], frozenset[int]]

_recorder: PathRecorder | None = None


def start(rank: Recorder) -> None:
    """From here on the rank's path is recorded, from the lines that its stack is at; not where a debugger or coverage traces."""
    global _recorder
    if _recorder is not None or threading.current_thread() is not threading.main_thread():
        return
    if sys.gettrace() is not None:
        rank.gap("its path is not recorded: another tool traces it (sys.settrace)")
        return
    try:
        _recorder = PathRecorder(rank)
    except (OSError, ValueError) as error:
        pass_on(error)
        rank.gap(f"its path is not recorded: {error}")
        return
    _recorder.begin()
    loop_rounds.observe = _recorder.observe
    atexit.register(_recorder.end)
    os.register_at_fork(after_in_child=_forget)


def announced(number: int, words: str) -> None:
    """A call of a group is announced; all that was folded is unfolded."""
    if _recorder is not None:
        _recorder.call(number, words)


def _forget() -> None:
    """End the recording in a fork of the rank, whose lines are not its path."""
    global _recorder
    if _recorder is not None:
        sys.settrace(None)
        loop_rounds.observe = _recorder = None


class _Unit:
    """One code object: its number, the names that its lines read, lines that handle an iterator's end, and lines since the last call."""

    __slots__ = ("code", "counted", "ends", "last", "number", "reads", "since", "trace")

    def __init__(
        self,
        code: CodeType,
        number: int,
        reads: dict[int, tuple[tuple[int, Read], ...]],
        ends: frozenset[int],
    ) -> None:
        self.code, self.number, self.reads, self.ends = code, number, reads, ends
        self.last: dict[int, str] = {}
        self.counted = self.since = 0
        self.trace: Any = None


class PathRecorder:
    """The trace functions of one process, and what they share."""

    def __init__(self, rank: Recorder) -> None:
        self._rank = rank
        self._words = Words(rank.directory.path_words, rank.directory.path_names)
        self._thread = threading.get_ident()
        self._units: dict[
            int, _Unit
        ] = {}  # by address: the hash of a code object is computed from all its constants
        self._lines: dict[str, _Lines] = {}  # by file
        self._folded: dict[int, FrameType] = {}
        self._calls = 0
        self._observer: Callable[[FrameType], None] | None = None
        self._trace = self._tracer()

    def begin(self) -> None:
        """Traces the frames that are on the stack, and all that will be."""
        frame: FrameType | None = sys._getframe(1)
        stack = []
        while frame is not None:
            if is_user_code(frame.f_code) and frame.f_code.co_filename[0] != "<":
                stack.append(frame)
            frame = frame.f_back
        for frame in reversed(stack):
            unit = self._unit(frame.f_code)
            self._words.put(ENTER, unit.number, frame.f_lineno)
            self._words.put(LINE, 0, frame.f_lineno)
            frame.f_trace = unit.trace
        sys.settrace(self._trace)

    def end(self) -> None:
        """Ends the path: generators that the interpreter closes on its way out find no module of ours whole."""
        self._calls = -1
        if sys.gettrace() is self._trace:
            sys.settrace(None)

    def observe(self, observer: Callable[[FrameType], None], done: threading.Event, most_s: float) -> bool:
        """Shows an observer the main thread's frame at each line of the user's, also at those that are folded, until it is done.

        Called by another thread; False where the path has ended.
        """
        if self._calls < 0 or self._observer is not None:
            return False
        self._observer = observer
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if id(frame.f_code) in self._units:
                if frame.f_trace is None:
                    frame.f_trace = self._beside
                frame.f_trace_lines = True
            frame = frame.f_back
        done.wait(most_s)
        self._observer = None
        return True

    def _beside(self, frame: FrameType, event: str, _given: Any) -> Any:
        """The trace function of a frame that is not on record: it is shown to an observer alone."""
        if event == "line":
            self._show(frame)
        return self._beside

    def _show(self, frame: FrameType) -> None:
        observer = self._observer
        if observer is None:
            frame.f_trace_lines = False
            return
        try:
            observer(frame)
        except Exception as error:
            pass_on(error)

    def call(self, number: int, words: str) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._calls >= 0 and sys.gettrace() is not self._trace:
            self._calls = -1
            self._rank.gap("its path ends early: another tool has taken the place of the trace function")
        if self._calls < 0:
            return
        self._calls = number
        self._words.put(CALL, self._words.number_of(words), number)
        for frame in self._folded.values():
            frame.f_trace_lines = True
        self._folded.clear()

    def _tracer(self) -> Any:
        """Every call of Python's comes here: what is not the user's is left at the second line."""
        units, put, known = self._units, self._words.put, users_files

        def call(frame: FrameType, _event: str, _: Any) -> Any:
            code = frame.f_code
            user = known.get(code.co_filename)
            if not (is_user_code(code) if user is None else user) or code.co_filename[0] == "<":
                return None
            try:
                unit = units.get(id(code)) or self._unit(code)
                if unit.counted > MOST_LINES and unit.since == self._calls:
                    return None if self._observer is None else self._beside
                put(ENTER, unit.number, frame.f_lineno)
            except Exception as error:
                pass_on(error)
                return None
            return unit.trace

        return call

    def _unit(self, code: CodeType) -> _Unit:
        unit = self._units.get(id(code))
        if unit is None:
            file = code.co_filename
            number = self._words.number_of_code(_name_of(code), file, code.co_firstlineno)
            if file not in self._lines:
                self._lines[file] = _lines_of(file)
            reads, ends = self._lines[file]
            number_of = self._words.number_of
            own = {line for _, _, line in code.co_lines() if line}
            named = {
                line: tuple((number_of(".".join(read)), read) for read in names)
                for line, names in reads.items()
                if line in own
            }
            unit = self._units[id(code)] = _Unit(code, number, named, ends)
            unit.trace = self._local(unit)
        return unit

    def _local(self, unit: _Unit) -> Any:
        """The trace function of one code object's frames."""
        put, reads, ends, number_of = self._words.put, unit.reads, unit.ends, self._words.number_of

        def trace(frame: FrameType, event: str, given: Any) -> Any:
            try:
                if event == "line" and id(frame) in self._folded:
                    self._show(frame)
                elif event == "line":
                    line = frame.f_lineno
                    put(LINE, 0, line)
                    if line in reads:
                        self._values(unit, frame, reads[line])
                    self._count(unit, frame)
                    if self._observer is not None:
                        self._show(frame)
                elif event == "return":
                    put(LEAVE, 0, frame.f_lineno)
                    self._folded.pop(id(frame), None)
                elif event == "exception" and (
                    not issubclass(given[0], NO_EXCEPTIONS) or frame.f_lineno in ends
                ):
                    put(RAISED, number_of(given[0].__name__), frame.f_lineno)
            except Exception as error:
                pass_on(error)
            return trace

        return trace

    def _values(self, unit: _Unit, frame: FrameType, reads: tuple[tuple[int, Read], ...]) -> None:
        """Those that have changed since the code's lines last read them."""
        last, put = unit.last, self._words.put
        for number, read in reads:
            value = value_of(frame, read)
            if last.get(number, "") != value:
                last[number] = value
                put(NAME, number, 0)
                put(VALUE, self._words.number_of(value), 0)

    def _count(self, unit: _Unit, frame: FrameType) -> None:
        if unit.since != self._calls:
            unit.since, unit.counted = self._calls, 0
        unit.counted += 1
        if unit.counted > MOST_LINES:
            self._words.put(FOLDED, unit.number, frame.f_lineno)
            frame.f_trace_lines = self._observer is not None
            self._folded[id(frame)] = frame


def _lines_of(file: str) -> _Lines:
    """Empty where there is no source."""
    try:
        with Path(file).open("rb") as source:
            text = source.read(MOST_SOURCE)
        return reads_by_line(text), handled_ends(text)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        pass_on(error)
        return {}, frozenset()


def _name_of(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # since Python 3.11
