"""Replaces attributes for the length of a `with`, and turns a failing observation into a gap."""

from __future__ import annotations

import contextlib
import functools
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

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


def not_compiled(function: F, *, what_it_calls: bool = False) -> F:
    """The same function, never a frame that dynamo compiles: our wrappers lie on the path of the user's code.

    After a graph break dynamo looks at every frame that is called. Tracing into a wrapper would lose its
    event, and trace calls that torch itself keeps out of graphs. Inlined into a graph they still can be.
    """
    eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    # One code object for all closures of a factory. Torch before 2.6 knows the first form only.
    code = function.__code__
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip, default = eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        strategy = eval_frame._FrameExecStrategy(skip, skip if what_it_calls else default)
        eval_frame.set_code_exec_strategy(code, strategy)
    elif hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)
    return function


_failed: set[Callable[..., Any]] = set()


def failed(observe: Callable[..., Any], error: Exception) -> None:
    """A gap for the first failure of an observation; `observe` itself may call this, where a guard's frame is too dear.

    Raises: `error` itself, where a signal handler of the job's raised it: it was not the observation that failed.
    """
    if _of_a_handler(error):
        raise error
    rank = runtime.current()
    if observe not in _failed and rank is not None:
        _failed.add(observe)
        with contextlib.suppress(OSError):
            rank.gap(f"{observe.__module__.rsplit('.', 1)[-1]}.{observe.__name__} failed: {error!r}")


def _of_a_handler(error: Exception) -> bool:
    """Whether it came up through a signal handler, which Python runs between any two lines, ours as well."""
    handlers = (getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals())
    codes = {code for code in handlers if code is not None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def harmless(observe: F) -> F:
    """The same observation, except that it returns None and records a gap, once, where it would raise.

    To Dynamo it is nothing at all: an observation that it traced would break the graph, or become a part of it.
    """
    is_traced = torch.compiler.is_dynamo_compiling  # the cheaper of the two tests

    @functools.wraps(observe)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        # Dynamo folds this test: a hook of ours that it meets leaves nothing in the graph.
        if is_traced():
            return None
        try:
            return observe(*args, **kwargs)
        except Exception as error:
            failed(observe, error)
            return None

    return not_compiled(guarded, what_it_calls=True)  # type: ignore[return-value]
