"""Exceptions of the job's signal handlers come out of our code; failures of our own do not."""

import functools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsadiag.worker.interruptions import of_a_handler, pass_on, tolerated


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
    assert of_a_handler(found.value)


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
