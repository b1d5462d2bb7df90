"""Lines of our own code: where a rule yielded, raised or returned."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, GeneratorType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2]

Tracer = Callable[[FrameType, str, Any], Any]


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
    # What leaves a generator as a RuntimeError was raised further in.
    if isinstance(error.__cause__, StopIteration):
        frames += traceback.extract_tb(error.__cause__.__traceback__)
    return " > ".join(f"{relative(frame.filename)}:{frame.lineno}" for frame in frames)


def returned_at(code: CodeType | None, run: Callable[[], object]) -> str:
    """The last line at which a function of that code returned, while `run` runs."""
    found = ""

    def in_frame(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal found
        if frame.f_code is not code:
            return None
        if event == "return":
            found = line_in(frame)
        return in_frame

    with traced(in_frame):
        run()
    return found


@functools.cache  # a judgement asks of some dozen files, thousands of times
def relative(file: str) -> str:
    """A source file of ours, from the folder that holds the package."""
    return Path(file).relative_to(PACKAGE.parent).as_posix() if PACKAGE in Path(file).parents else file


@contextmanager
def traced(tracer: Tracer) -> Iterator[list[str]]:
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


def line_in(frame: FrameType) -> str:
    """File and line at which the call is."""
    return f"{relative(frame.f_code.co_filename)}:{frame.f_lineno}"
