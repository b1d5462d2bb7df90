"""Replaces attributes for the length of a `with`, and turns a failing observation into a gap."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch.compiler import is_dynamo_compiling

from nsadiag.worker import runtime

F = TypeVar("F", bound=Callable[..., Any])


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` inside the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def harmless(observe: F) -> F:
    """The same observation, except that it returns None and records a gap, once, where it would raise.

    To Dynamo it is nothing at all: an observation that it traced would break the graph, or become a part of it.
    """
    failed = False

    @functools.wraps(observe)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal failed
        if is_dynamo_compiling():
            return None
        try:
            return observe(*args, **kwargs)
        except Exception as error:
            rank = runtime.current()
            if not failed and rank is not None:
                failed = True
                with contextlib.suppress(OSError):
                    rank.gap(f"{observe.__module__.rsplit('.', 1)[-1]}.{observe.__name__} failed: {error!r}")
            return None

    return guarded  # type: ignore[return-value]
