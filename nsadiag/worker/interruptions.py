"""Exceptions of the job's that come up in our code: those of its signal handlers, which Python runs between any two lines,
and those that one of its threads throws into another (PyThreadState_SetAsyncExc).

Who raises one there (a time limit, a cancelled task) means to end what runs, and what runs may be ours. Whoever tolerates
failures of our own lets those pass. Standard library only.
"""

from __future__ import annotations

import functools
import itertools
import sys
from signal import getsignal, valid_signals
from types import CodeType, FrameType, TracebackType

_VARARGS = 0x04  # inspect.CO_VARARGS, whose module costs 10 ms at start-up
# What C and libraries raise without a word.
_SILENT = (AssertionError, MemoryError, NotImplementedError, StopIteration, StopAsyncIteration)


def of_the_jobs(error: BaseException) -> bool:
    """Whether it came up through a signal handler of Python's, or was thrown into this thread."""
    return _is_the_jobs(error, error.__traceback__)


def pass_on(error: BaseException) -> None:
    """For the first line of an `except` that would keep it. Raises: `error` itself, where it is the job's."""
    if of_the_jobs(error):
        raise error


class tolerated:
    """`contextlib.suppress` for failures of our own."""

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or error is None or not issubclass(kind, self._kinds):
            return False
        return not _is_the_jobs(error, trace)


def _is_the_jobs(error: BaseException, trace: TracebackType | None) -> bool:
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return _passes_through_a_handler(frames) or _was_thrown(
        error, [frame.f_code.co_filename for frame in frames]
    )


def _passes_through_a_handler(frames: list[FrameType]) -> bool:
    codes = {code for number in valid_signals() if (code := _code_of(getsignal(number)))}
    if any(frame.f_code in codes for frame in frames):
        return True
    # One that has put itself away meanwhile is known by what it was given: the frame that it interrupted.
    return any(_is_given(frame, caller) for caller, frame in itertools.pairwise(frames))


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_given(frame: FrameType, value: object) -> bool:
    code, held = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + bool(code.co_flags & _VARARGS)]
    given = [held[name] for name in names if name in held]
    return any(value is each for one in given for each in (one if type(one) is tuple else (one,)))


def _was_thrown(error: BaseException, files: list[str]) -> bool:
    """Nobody on the way can have raised it: it is no exception of ours, of torch's or of the standard library's."""
    from nsadiag.evidence import user_code

    if not files or isinstance(error, _SILENT) or not all(map(user_code.is_infrastructure, files)):
        return False
    kind = type(error).__module__.partition(".")[0]
    if kind == "builtins":
        # One that is thrown is made of its class alone; those of system calls have a number.
        return not error.args and (isinstance(error, OSError) or user_code.is_ours(files[-1]))
    if kind in ("torch", "nsadiag", "pybind11_builtins") or kind in sys.stdlib_module_names:
        return False
    return not error.args or kind == "__main__"
