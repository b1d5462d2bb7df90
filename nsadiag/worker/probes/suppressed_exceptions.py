"""Exceptions that do not end the process: swallowed by an `except`, or held back by a `finally` that waits for peers.

No hook tells of every exception at no cost (Python 3.11), so they are noted where they pass us: as one leaves a call
that a probe stands around, as a handler speaks of one, as a collective is entered with one in flight.
"""

from __future__ import annotations

import sys
import threading
from collections import deque

from nsadiag.evidence.layout import append_json_line
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.failures import crash
from nsadiag.worker.failures.messages import message_of
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.place import user_place, user_stack
from nsadiag.worker.recorder import Recorder

KEPT = 100  # a loop that skips every batch must not fill the disk
# How iterators and torch's own machinery say that they are done.
NOT_ERRORS = (StopIteration, StopAsyncIteration, GeneratorExit)
NOT_ERRORS_BY_NAME = frozenset({"_StopRecomputationError", "StopRecomputationError"})

# An exception passes several of our calls on its way up, and a handler may speak of it twice.
_EXCEPTION, _POINT = int(Kind.EXCEPTION), int(Phase.POINT)
_lately: deque[tuple[int, int, int, str]] = deque(maxlen=16)
_noted = 0


def left(error: BaseException, during: str) -> None:
    """It leaves a call that a probe stands around: forward, backward, input, a collective by its name."""
    _note(error, "left", during, {})


def handled(error: BaseException, by: str) -> None:
    """A handler speaks of it: by print, logging, traceback."""
    _note(error, "handled", by, {})


def in_flight(op: str, group: str, number: int) -> None:
    """To be called as a collective begins: an exception may be on its way up, in a `finally` or an `except`."""
    error = sys.exc_info()[1]
    if error is not None:
        _note(error, "in flight", op, {"group": group, "number": number})


def _note(error: BaseException, how: str, during: str, more: dict[str, object]) -> None:
    rank = session.recorded.rank
    if rank is None or rank.silenced or not _is_error(error):
        return
    # Nothing that goes wrong here may replace the exception that is being looked at.
    try:
        step, trace = rank.box.step, error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        # The address of one that is gone may be given to the next; its line and step differ.
        key = (id(error), trace.tb_lineno if trace else 0, step, how if how == "in flight" else "")
        if key not in _lately:
            _lately.append(key)
            _write(rank, error, {"how": how, "during": during, "step": step, **more})
    except Exception as failure:
        pass_on(failure)


def _is_error(error: BaseException) -> bool:
    return (
        isinstance(error, Exception)
        and not isinstance(error, NOT_ERRORS)
        and type(error).__name__ not in NOT_ERRORS_BY_NAME
    )


def _write(rank: Recorder, error: BaseException, more: dict[str, object]) -> None:
    """An event for each; the frames, for which source files are read, of the first ones alone."""
    global _noted
    rank.emit(_EXCEPTION, _POINT, rank.names(type(error).__name__), 0, 0, rank.places.here())
    _noted += 1
    if _noted <= KEPT:
        described = crash.describe(error, error.__traceback__, threading.current_thread().name, message_of)
        row = {**described, "place": user_place(), "stack": user_stack(), **more}
        append_json_line(rank.directory.raised, row)
