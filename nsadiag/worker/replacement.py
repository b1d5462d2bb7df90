"""Functions that stand in for others': the same name, signature, pickle and identity, and no frame in a traceback.

Standard library only. `faithful` makes what replaces a function; `Patches` places it and takes it away again.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any

from nsadiag.worker.interruptions import tolerated

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib costs 10 ms at start-up
# What of ours runs in a rank.
_OURS = (f"{_HOME}/worker/", f"{_HOME}/evidence/")
_MISSING = object()


def faithful(around: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """A stand-in for `original`: `around`, which takes the same arguments, calls the original itself, and leaves no frame of
    its own in a traceback.

    A builtin is replaced by an object that is not bound as a method either; a Python function by a function.
    """
    if isinstance(original, types.BuiltinFunctionType):
        # A class each, whose call is `around` itself: a method that passes the arguments on would be one frame more.
        return type(_Builtin.__name__, (_Builtin,), {**_AS_IT_SAYS, "__call__": staticmethod(around)})(
            original
        )
    if isinstance(around, types.MethodType):
        around = _function(around)  # a bound method takes no attributes
    functools.update_wrapper(around, original)
    inspect = sys.modules.get("inspect")
    if inspect is not None and not hasattr(around, "__signature__"):
        # getfullargspec does not follow __wrapped__.
        with tolerated(TypeError, ValueError):
            around.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return around


def _function(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


class _Builtin:
    """Looks like the builtin: `isinstance`, `inspect`, `repr`, weak references and pickles by name take it for one."""

    __slots__ = ("__weakref__", "_original")

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __dir__(self) -> list[str]:
        return dir(self._original)

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._original.__reduce_ex__(protocol)

    def __reduce__(self) -> Any:
        return self._original.__reduce__()

    __class__ = property(lambda self: type(self._original))


# Found on the class, which has them of its own, before __getattr__ is asked.
_AS_IT_SAYS: dict[str, Any] = {
    "__slots__": (),
    "__module__": property(lambda self: self._original.__module__),
    "__doc__": property(lambda self: self._original.__doc__),
}


def noted(before: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """A stand-in for `original` that calls `before` with the same arguments first."""

    def around(*args: Any, **kwargs: Any) -> Any:
        try:
            before(*args, **kwargs)
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    return faithful(around, original)


class Patches:
    """Attributes that were replaced; `undo` puts back those that nobody else has replaced since."""

    def __init__(self) -> None:
        self._placed: list[tuple[Any, str, Any, Any]] = []

    def note(self, owner: Any, name: str, before: Callable[..., Any], *others: tuple[Any, str]) -> Any:
        """Has `before` called with the arguments of each call of `owner.name`; it must not raise."""
        return self.place(owner, name, lambda original: noted(before, original), *others)

    def place(self, owner: Any, name: str, make: Callable[[Any], Any], *others: tuple[Any, str]) -> Any:
        """Replaces `owner.name` by `make(original)`, which is to be faithful to it; returns that.

        The module that a builtin says it is from gets it as well, since pickles find it there (`posix.kill`), and so
        do `others` that hold the very same object.
        """
        original = getattr(owner, name)
        ours = make(original)
        homes = [(owner, name), *others]
        if isinstance(original, types.BuiltinFunctionType):
            homes.append((sys.modules.get(original.__module__ or ""), original.__qualname__))
        for home, known_as in dict.fromkeys(homes):
            if home is not None and getattr(home, known_as, None) is original:
                self.put(home, known_as, ours)
        return ours

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Sets the attribute to the value as it is."""
        self._placed.append((owner, name, vars(owner).get(name, _MISSING), value))
        _set(owner, name, value)

    def undo(self) -> None:
        """Removes ours; what others have put over it stays, and goes on to call it."""
        while self._placed:
            owner, name, before, ours = self._placed.pop()
            if vars(owner).get(name) is not ours:
                continue
            _set(owner, name, before)


def _set(owner: Any, name: str, value: Any) -> None:
    """Sets the attribute, or deletes it where the value is _MISSING; a metaclass in Python neither sees nor refuses it."""
    of_user = issubclass(type(owner), type) and _overrides_setting(type(owner))
    if value is _MISSING:
        (type.__delattr__ if of_user else delattr)(owner, name)
    else:
        (type.__setattr__ if of_user else setattr)(owner, name, value)


def _overrides_setting(metaclass: type) -> bool:
    # One in C, such as pybind11's, refuses what does not come by way of it.
    return any(
        isinstance(each, types.FunctionType) for each in (metaclass.__setattr__, metaclass.__delattr__)
    )


def leave_no_frame(error: BaseException) -> None:
    """For the `except` of a wrapper, before a bare `raise`: its own frame, and those of ours that it called, are in no traceback.

    A bare `raise` adds no entry of its own (seen on 3.10 to 3.13), so the next one is the caller's.
    """
    error.__traceback__ = _first_of_others(error.__traceback__)


def cut_our_frames(error: BaseException) -> None:
    """The same for frames of ours anywhere in the tracebacks of an exception, and of those from which it came."""
    chain: list[BaseException | None] = [error]
    met: set[int] = set()
    while chain:
        one = chain.pop()
        if one is None or id(one) in met:
            continue
        met.add(id(one))
        trace = one.__traceback__ = _first_of_others(one.__traceback__)
        while trace is not None:
            behind = _first_of_others(trace.tb_next)
            if behind is not trace.tb_next:
                trace.tb_next = behind
            trace = behind
        chain += one.__cause__, one.__context__


def _first_of_others(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and is_ours(trace.tb_frame.f_code):
        trace = trace.tb_next
    return trace


def is_ours(code: CodeType) -> bool:
    """Whether it is the recorder's or a probe's."""
    return code.co_filename.startswith(_OURS)
