"""Exceptions of the job's signal handlers come out of our code; failures of our own do not."""

import ctypes
import functools
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsadiag.worker import interruptions
from nsadiag.worker.interruptions import of_the_jobs, pass_on, tolerated


class TimeLimit(TimeoutError):
    """An OSError, as what a handler of a time limit raises usually is."""


def _raises(*_: Any) -> None:
    raise TimeLimit


class _Object:
    def __call__(self, *_: Any) -> None:
        raise TimeLimit

    def method(self, *_: Any) -> None:
        raise TimeLimit


HANDLERS = {
    "function": _raises,
    "lambda": lambda *_: _raises(),
    "method": _Object().method,
    "object": _Object(),
    "partial": functools.partial(functools.partial(_raises), 1),
}


@pytest.fixture(params=HANDLERS.values(), ids=HANDLERS)
def handled(request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Sends this process a signal that has a handler."""
    before = signal.signal(signal.SIGUSR1, request.param)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_what_a_handler_raises_is_not_tolerated(handled: Callable[[], None]) -> None:
    with pytest.raises(TimeLimit), tolerated(OSError):
        handled()


def test_what_a_handler_raises_is_passed_on(handled: Callable[[], None]) -> None:
    with pytest.raises(TimeLimit) as found:
        try:
            handled()
        except OSError as error:
            pass_on(error)
    assert of_the_jobs(found.value)


def test_failures_of_our_own_are_tolerated() -> None:
    with tolerated(OSError, ValueError):
        raise TimeLimit
    try:
        raise TimeLimit
    except TimeLimit as error:
        pass_on(error)


def test_other_failures_come_out() -> None:
    with pytest.raises(KeyError), tolerated(OSError):
        raise KeyError


class Cancelled(Exception):
    pass


@pytest.mark.parametrize("kind", [Cancelled, TimeoutError])
def test_what_another_thread_throws_is_not_tolerated(kind: type[Exception]) -> None:
    thread, thrown = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(kind)

    def observe() -> None:
        with tolerated(Exception):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, thrown)
            while True:
                pass

    # As if it were a line of ours that it comes upon.
    ours = observe.__code__.replace(co_filename=interruptions.__file__)
    with pytest.raises(kind):
        types.FunctionType(ours, globals(), None, None, observe.__closure__)()


def test_a_handler_that_has_put_itself_away_is_known_by_the_frame_that_it_was_given() -> None:
    def handler(*_: Any) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise TimeLimit

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeLimit), tolerated(OSError):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
