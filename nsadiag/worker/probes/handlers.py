"""Handlers that speak of an exception and go on: by print, by logging, by formatting its traceback."""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from nsadiag.evidence.sources import is_user
from nsadiag.worker import raised
from nsadiag.worker.probes.patch import not_compiled, replaced


def _observed_print(call: Callable[..., Any]) -> Callable[..., Any]:
    exc_info = sys.exc_info

    @functools.wraps(call)
    def print(*args: Any, **kwargs: Any) -> Any:
        error = exc_info()[1]
        if error is not None:
            raised.handled(error, "print")
        return call(*args, **kwargs)

    return not_compiled(print)


def _observed_record(make: Callable[..., Any]) -> Callable[..., Any]:
    """Around logging's record factory, whoever has set it: that is called once a message that somebody wants."""

    def factory(*args: Any, **kwargs: Any) -> Any:
        record = make(*args, **kwargs)
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else sys.exc_info()[1]
        if error is not None:
            raised.handled(error, "logging")
        return record

    return factory


def _observed_question(ask: Callable[..., bool]) -> Callable[..., bool]:
    """Around what a logger asks before anything else: a message that nobody wants tells of the exception as well.

    Only the user's own: torch and others drop many at this level, and would fill what is kept.
    """
    exc_info, frame_of = sys.exc_info, sys._getframe

    @functools.wraps(ask)
    def isEnabledFor(self: Any, level: Any) -> bool:
        wanted = ask(self, level)
        if not wanted:
            error = exc_info()[1]
            # Between us and the user is the logger's own debug().
            asked_by = frame_of(1).f_back
            if error is not None and asked_by is not None and is_user(asked_by.f_code.co_filename):
                raised.handled(error, "logging")
        return wanted

    return not_compiled(isEnabledFor)


def _observed_format(construct: Callable[..., None]) -> Callable[..., None]:
    """All of `traceback` makes one of these, for the exception and for those that it was raised from."""

    @functools.wraps(construct)
    def __init__(self: Any, exc_type: Any, exc_value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(exc_value, BaseException) and exc_value is sys.exc_info()[1]:
            raised.handled(exc_value, "traceback")
        construct(self, exc_type, exc_value, *args, **kwargs)

    return __init__


@contextlib.contextmanager
def handlers() -> Iterator[None]:
    """print, logging and traceback, while an exception is being handled (raised.jsonl)."""
    made = logging.getLogRecordFactory()
    observed = _observed_record(made)
    construct = traceback.TracebackException.__init__
    with (
        replaced(builtins, "print", _observed_print(builtins.print)),
        replaced(traceback.TracebackException, "__init__", _observed_format(construct)),
        replaced(logging.Logger, "isEnabledFor", _observed_question(logging.Logger.isEnabledFor)),
    ):
        logging.setLogRecordFactory(observed)
        try:
            yield
        finally:
            if logging.getLogRecordFactory() is observed:
                logging.setLogRecordFactory(made)
