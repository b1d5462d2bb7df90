"""Ctrl-C, Ctrl-\\, SIGTERM and SIGHUP: heard even where Python swallows the exception, and held off while a job is being ended.

Python delivers signals to the main thread alone. Work in other threads hears of them where it calls `check`, and
nothing can come in between elsewhere: there `held_off` has nothing to do.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# What schedulers and terminals tell a command: Slurm, some time before the end (--signal=USR1@60), a new size of the window.
FOR_THE_JOB = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_asked = False
_times = 0  # that a person, or a scheduler, has asked
_held = False  # of the main thread
_listeners: list[Callable[[], None]] = []


def listen() -> None:
    """From here on each of them raises KeyboardInterrupt; one that the shell has us ignore stays ignored."""
    for number in HEARD:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _hear)
    atexit.register(_deafen)


def _hear(number: int, _frame: object) -> None:
    global _times
    first = _times == 0
    _times += 2 if number == signal.SIGQUIT else 1
    ask()
    if first:
        for listener in reversed(_listeners):
            listener()
    if not _held:
        raise KeyboardInterrupt


def ask() -> None:
    """From here on `check` raises, in every thread: all that runs is to be ended."""
    global _asked
    _asked = True


def asked() -> bool:
    """Whether any of them has come; a job may end by an interrupt of its own."""
    return _asked


def check() -> None:
    """Raises again what was lost: in a fork hook or a destructor Python prints the exception and goes on."""
    if _asked:
        raise KeyboardInterrupt


def hurried() -> bool:
    """Whether it was asked for twice, or by Ctrl-\\: nothing is waited for any more but what a verdict needs."""
    return _times > 1


@contextlib.contextmanager
def notifying(listener: Callable[[], None]) -> Iterator[None]:
    """Calls `listener` at the first of them, at once, whatever is held off; inner ones come first."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


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
def skippable() -> Iterator[None]:
    """The part of `held_off` that the next of them ends, and nothing else with it."""
    with contextlib.suppress(KeyboardInterrupt), _holding(False):
        yield


def end_at_once(code: int) -> None:
    """From here on each of them ends this process by that code: all that is left to do is to leave."""
    with contextlib.suppress(Exception), skippable():
        sys.stdout.flush()

    def leave(_number: int, _frame: Any) -> None:
        os._exit(code)

    _replace_ours(leave)


def _deafen() -> None:
    """At exit, before Python puts back what kills by the signal in place of the exit code."""
    _replace_ours(signal.SIG_IGN)


def _replace_ours(handler: Any) -> None:
    for number in HEARD:
        if getattr(signal.getsignal(number), "__module__", None) == __name__:
            signal.signal(number, handler)


@contextlib.contextmanager
def _holding(held: bool) -> Iterator[None]:
    global _held
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = _held
    try:
        _held = held
        yield
    finally:
        _held = before


@contextlib.contextmanager
def stopped_with(pause: Callable[[], None], resume: Callable[[], None]) -> Iterator[None]:
    """Ctrl-Z and `fg` for a job in a process group of its own: `pause` before we stop, `resume` when we go on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: object) -> None:
        pause()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Stopped in the line above, until we are continued.
        signal.signal(number, stop)
        resume()

    before = {n: signal.signal(n, stop) for n in STOPS if signal.getsignal(n) == signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def passed_on(send: Callable[[int], None]) -> Iterator[None]:
    """Signals that are for the command in whose place we were started: `send` gets the number of each."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = {n: lambda number, _frame: send(number) for n in FOR_THE_JOB}
    before = {n: signal.signal(n, ours[n]) for n in ours if signal.getsignal(n) == signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
