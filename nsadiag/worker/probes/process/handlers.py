"""Except blocks that log an exception and continue: by print, by logging, by formatting its traceback."""

from __future__ import annotations

import builtins
import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nsadiag.worker.place import is_user_code
from nsadiag.worker.probes import suppressed_exceptions
from nsadiag.worker.probes.patch import STEPS_OUT, replaced, stands_for, unseen
from nsadiag.worker.replacement import faithful, leave_no_frame

# Python 3.10 has no such function.
_exception: Callable[[], BaseException | None] = getattr(sys, "exception", None) or (
    lambda: sys.exc_info()[1]
)


def _observed_print(call: Callable[..., Any]) -> Callable[..., Any]:
    exception, is_traced = _exception, torch.compiler.is_dynamo_compiling

    # Not by `stands_for`, which would be a second frame around each line that is printed.
    def print(*args: Any, **kwargs: Any) -> Any:
        try:
            handled = exception()
            if handled is not None and not is_traced():
                suppressed_exceptions.handled(handled, "print")
            return call(*args, **kwargs) if kwargs else call(*args)
        except BaseException as error:
            leave_no_frame(error)
            raise

    # Not bound to an object whose class holds it, as a function would be.
    return faithful(unseen(print), call)  # type: ignore[no-any-return]


def _observed_handle(handle_record: Callable[..., None]) -> Callable[..., None]:
    """Around what a logger does with a message that somebody wants, whoever makes its records."""

    @stands_for(handle_record)
    def handle(self: Any, record: Any) -> None:
        told = getattr(record, "exc_info", None)
        error = told[1] if isinstance(told, tuple) else sys.exc_info()[1]
        if error is not None:
            suppressed_exceptions.handled(error, "logging")
        handle_record(self, record)

    return handle


def _observed_question(ask: Callable[..., bool]) -> Callable[..., bool]:
    """Around what a logger asks before anything else: a message that nobody wants tells of the exception as well.

    Only the user's own: torch and others drop many at this level, and would fill what is kept.
    """
    exc_info, frame_of = sys.exc_info, sys._getframe

    @stands_for(ask)
    def isEnabledFor(self: Any, level: Any) -> bool:
        wanted = ask(self, level)
        if not wanted:
            error = exc_info()[1]
            # Between us and the user is the logger's own debug().
            asked_by = frame_of(STEPS_OUT).f_back
            if error is not None and asked_by is not None and is_user_code(asked_by.f_code):
                suppressed_exceptions.handled(error, "logging")
        return wanted

    return isEnabledFor


def _observed_format(construct: Callable[..., None]) -> Callable[..., None]:
    """All of `traceback` makes one of these, for the exception and for those that it was raised from."""

    @stands_for(construct)
    def __init__(self: Any, exc_type: Any, exc_value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(exc_value, BaseException) and exc_value is sys.exc_info()[1]:
            suppressed_exceptions.handled(exc_value, "traceback")
        construct(self, exc_type, exc_value, *args, **kwargs)

    return __init__


@contextlib.contextmanager
def handlers() -> Iterator[None]:
    """print, logging and traceback, while an exception is being handled (raised.jsonl)."""
    construct = traceback.TracebackException.__init__
    with (
        replaced(builtins, "print", _observed_print(builtins.print)),
        replaced(traceback.TracebackException, "__init__", _observed_format(construct)),
        replaced(logging.Logger, "isEnabledFor", _observed_question(logging.Logger.isEnabledFor)),
        replaced(logging.Logger, "handle", _observed_handle(logging.Logger.handle)),
    ):
        yield
