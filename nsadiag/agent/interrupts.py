"""Ctrl-C and SIGTERM: heard even where Python swallows the exception, and held off while a job is being ended.

Python delivers signals to the main thread alone. Work in other threads hears of them where it calls `check`, and
nothing can come in between elsewhere: there `held_off` has nothing to do.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_asked = False
_held = False  # of the main thread


def listen() -> None:
    """From here on either signal raises KeyboardInterrupt; a SIGINT that the shell has us ignore stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _hear)


def _hear(_number: int, _frame: object) -> None:
    ask()
    if not _held:
        raise KeyboardInterrupt


def ask() -> None:
    """From here on `check` raises, in every thread: all that runs is to be ended."""
    global _asked
    _asked = True


def check() -> None:
    """Raises again what was lost: in a fork hook or a destructor Python prints the exception and goes on."""
    if _asked:
        raise KeyboardInterrupt


@contextlib.contextmanager
def held_off() -> Iterator[None]:
    """For work that must not stop half-way: what comes meanwhile is remembered, for `let_in` and `check`."""
    with _holding(True):
        yield


@contextlib.contextmanager
def let_in() -> Iterator[None]:
    """The part of `held_off` that may be interrupted; what came before is raised at once."""
    with _holding(False):
        check()
        yield


@contextlib.contextmanager
def _holding(held: bool) -> Iterator[None]:
    global _held
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, _held = _held, held
    try:
        yield
    finally:
        _held = before
