"""Exceptions of the job's that come up in our code: those of its signal handlers, which Python runs between any two lines.

A handler that raises (a time limit by SIGALRM) means to end what runs, and what runs may be ours. Whoever tolerates failures
of our own lets those pass. Standard library only.
"""

from __future__ import annotations

import functools
import signal
from types import CodeType, TracebackType


def of_a_handler(error: BaseException) -> bool:
    """Whether it came up through a signal handler of Python's."""
    return _passes_through_a_handler(error.__traceback__)


def pass_on(error: BaseException) -> None:
    """For the first line of an `except` that would keep it. Raises: `error` itself, where a signal handler has raised it."""
    if of_a_handler(error):
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
        return kind is not None and issubclass(kind, self._kinds) and not _passes_through_a_handler(trace)


def _passes_through_a_handler(trace: TracebackType | None) -> bool:
    codes = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number)))}
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None
