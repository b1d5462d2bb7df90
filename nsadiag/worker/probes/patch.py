"""Replaces torch's functions for the length of a `with`, and turns a failing observation into a gap.

A replacement keeps name, signature, defaults, pickle and identity, and leaves no frame in tracebacks
(`nsadiag.worker.replacement`); warnings count their `stacklevel` past it; Dynamo does not compile it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from nsadiag.worker import session
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.replacement import Patches, faithful, leave_no_frame

F = TypeVar("F", bound=Callable[..., Any])


# `warnings` passes over frames of files that are named like the import system's own, whatever else their name holds:
# a stacklevel then counts the frames that there would be without us.
PASSED_OVER = "<importlib._bootstrap>"


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any, *aliases: str) -> Iterator[None]:
    """`owner.name` is `value` inside the block, and so is that of every other module that holds the same object by that
    name, or by one of `aliases`: torch exports most of it twice, and some was imported before we came.

    What somebody has put over it meanwhile stays.
    """
    patches = Patches()
    try:
        holders = _holders(getattr(owner, name), name, *aliases) if isinstance(owner, ModuleType) else []
        patches.put(owner, name, value)
        for holder, known_as in holders:
            patches.put(holder, known_as, value)
        yield
    finally:
        patches.undo()


def _holders(value: Any, *names: str) -> list[tuple[ModuleType, str]]:
    # By the type, and past it: lazy modules and proxies of the user's may mind being asked.
    modules = [m for m in list(sys.modules.values()) if issubclass(type(m), ModuleType)]
    held = [(m, object.__getattribute__(m, "__dict__")) for m in modules]
    return [(module, name) for module, of_it in held for name in names if of_it.get(name) is value]


# From a function that `stands_for` decorates to whoever has called it, for sys._getframe.
STEPS_OUT = 2


def stands_for(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes of a function, which takes the same arguments and calls the original, what may stand in its place."""

    def dress(function: Callable[..., Any]) -> Callable[..., Any]:
        is_traced = torch.compiler.is_dynamo_compiling
        unseen(function)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            # Dynamo folds this test; what it traces is the original alone.
            if is_traced():
                return original(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise

        return dressed(replacement, original)

    return dress


def dressed(function: Any, original: Any) -> Callable[..., Any]:
    """The function with name, signature and defaults of the original, and unseen by warnings and Dynamo."""
    if isinstance(original, FunctionType):
        faithful(function, original)
        # With positional arguments of its own, the interpreter would take them for theirs.
        if not function.__code__.co_argcount:
            function.__defaults__, function.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    else:
        # A builtin that is a method: what `faithful` makes of one is not bound to the object it is called on.
        functools.update_wrapper(function, original)
    seen_as: Callable[..., Any] = unseen(function)
    return seen_as


def unseen(function: F) -> F:
    """The function, whose frame on the user's path warnings do not count and Dynamo does not compile."""
    code = function.__code__
    function.__code__ = code.replace(co_filename=code.co_filename + PASSED_OVER)
    return not_compiled(function)


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
    pass_on(error)
    rank = session.current()
    if observe not in _failed and rank is not None:
        _failed.add(observe)
        rank.gap(f"{observe.__module__.rsplit('.', 1)[-1]}.{observe.__name__} failed: {error!r}")


def harmless(observe: F) -> F:
    """The same observation, except that it returns None and records a gap, once, where it would raise.

    To Dynamo it is nothing at all: an observation that it traced would break the graph, or become a part of it.
    """
    is_traced = torch.compiler.is_dynamo_compiling  # the cheaper of the two tests
    # A mode or a tensor subclass of the user's is to see the user's operations alone: also where what is observed comes to
    # a tensor by way of a module, a list or what it has kept, so that the arguments do not tell. It costs 200 ns.
    without_overrides = torch._C.DisableTorchFunction
    function_mode, dispatch_modes = (
        torch._C._is_torch_function_mode_enabled,
        torch._C._len_torch_dispatch_stack,
    )

    @functools.wraps(observe)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        # Dynamo folds this test: a hook of ours that it meets leaves nothing in the graph.
        if is_traced():
            return None
        try:
            if function_mode() or dispatch_modes():
                with without_overrides(), _disable_current_modes():
                    return observe(*args, **kwargs)
            with without_overrides():
                return observe(*args, **kwargs)
        except Exception as error:
            failed(observe, error)
            return None

    return not_compiled(guarded, what_it_calls=True)  # type: ignore[return-value]
