"""A limit for a call that has none of its own: name lookup, TLS, a file system, a library."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def call(function: Callable[[], Result], seconds: float) -> Result:
    """The result or exception of the function. Raises TimeoutError where it has not returned in time.

    It runs in a daemon thread: one that never returns is left behind, and keeps no process from ending.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="nsadiag-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]
