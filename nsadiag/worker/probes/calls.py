"""Module calls, seen from one frame around `nn.Module.__call__`: no hook on any module, no trace in a pickled model.

Global forward hooks would send every module down the slow path of `_call_impl`, and Dynamo traces them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nsadiag.worker import raised, runtime
from nsadiag.worker.probes.patch import failed, not_compiled

EVERY_DEPTH = 1 << 30
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

# Called with each root module the first time it runs; probes that need parameters subscribe here.
on_root: list[Callable[[torch.nn.Module], None]] = []
# Called with each outermost module, and what it is called with.
on_call: list[Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]] = []
# Called with each outermost module that does not train.
on_evaluating: list[Callable[[torch.nn.Module], None]] = []
# What the modules probe does around every observed call: (rank, number, depth, what it is called with), and
# (number, depth, output).
Enter = Callable[[runtime.Runtime, int, int, tuple[Any, ...], dict[str, Any]], None]
Leave = Callable[[int, int, Any], None]
_enter: Enter | None = None
_leave: Leave | None = None

calls_by_depth: Counter[int] = Counter()  # observed since the last review of the budget
# Numbers of the modules that the checkpointed function running now has entered itself, and how deep it is nested.
_entered: list[int] | None = None
_entered_at = 0
_depth = 0  # of nested calls, on whichever thread: two threads in forward at once see fewer of each other's
_limit = EVERY_DEPTH  # calls nested deeper than this are not looked at
# Weak: the probe must not keep a model alive. Keyed by id, since modules may define __eq__.
_names: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}


def qualified(name: str) -> str:
    """The name the user knows: without the layers that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def name_of(module: torch.nn.Module, rank: runtime.Runtime) -> int:
    """The number of the module's qualified name; a module under no known root becomes one."""
    known = _names.get(id(module))
    if known is None or known[0]() is not module:
        _learn(module, rank)
        known = _names[id(module)]
    return known[1]


def _learn(root: torch.nn.Module, rank: runtime.Runtime) -> None:
    """Names all modules under a root that is met for the first time."""
    patches.add_root(root)
    for name, module in root.named_modules():
        number = rank.names(qualified(name) or type(root).__name__)
        _names[id(module)] = (weakref.ref(module), number)
    for subscriber in on_root:
        subscriber(root)


@contextlib.contextmanager
def entered() -> Iterator[list[int]]:
    """Fills the list with the numbers of the modules that code in the block calls itself, however deep it is nested."""
    global _limit, _entered, _entered_at
    before = _limit, _entered, _entered_at
    _limit, _entered, _entered_at = max(_limit, _depth + 1), [], _depth
    try:
        yield _entered
    finally:
        _limit, _entered, _entered_at = before


@contextlib.contextmanager
def around_calls(enter: Enter, leave: Leave) -> Iterator[None]:
    """Has the two called around every observed call."""
    global _enter, _leave
    _enter, _leave = enter, leave
    try:
        yield
    finally:
        _enter = _leave = None


def _observed(call: Callable[..., Any], compiling: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        global _depth
        nested = _depth
        # Under torch.compile whatever Python we ran here would be compiled, too: the outermost call is all there is.
        if nested >= _limit or compiling() is not None:
            return call(self, *args, **kwargs)
        # Not through `harmless`, which costs a frame: this runs around every module where probes are full.
        number, output = 0, None
        try:
            rank = runtime.recorded.rank or runtime.ensure_rank()
            if rank is not None:
                known = _names.get(id(self))
                number = known[1] if known is not None and known[0]() is self else name_of(self, rank)
                calls_by_depth[nested] += 1
                if _entered is not None and nested == _entered_at:
                    _entered.append(number)
                if _enter is not None:
                    _enter(rank, number, nested, args, kwargs)
        except Exception as error:
            failed(_observed, error)
        if not nested:
            for subscriber in on_call:
                subscriber(self, args, kwargs)
            # Where it is not in there the module is no user's (a scripted one): asking it would run its code.
            if not self.__dict__.get("training", True):
                for each in on_evaluating:
                    each(self)
        _depth = nested + 1
        try:
            output = call(self, *args, **kwargs)
            return output
        except Exception as error:
            raised.left(error, "forward")
            raise
        finally:
            _depth = nested
            if number and _leave is not None:
                try:
                    _leave(number, nested, output)
                except Exception as error:
                    failed(_observed, error)

    return __call__


class _Patches:
    """Where the frame is in place: around every module, or around the classes of the roots alone."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._roots: set[type[torch.nn.Module]] = set()
        self._users = 0
        self.everywhere = False

    def add_root(self, root: torch.nn.Module) -> None:
        self._roots.add(type(root))

    def expect(self, owner: type[torch.nn.Module]) -> None:
        """Has calls of the class seen from now on, whether or not one was met while everything was looked at."""
        if owner in self._roots:
            return
        self._roots.add(owner)
        if self._users and not self.everywhere:
            self.place(everywhere=False)

    def acquire(self) -> None:
        """Raises ImportError where this torch cannot say whether it compiles."""
        self._users += 1
        if self._users == 1:
            self.place(everywhere=True)

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self._undo.close()
            # Numbers are those of a recording that may be over.
            _names.clear()

    def place(self, *, everywhere: bool) -> None:
        """Moves the frame. On a class it is found before the one of nn.Module, and nobody pays for it but the roots."""
        if not self._users:
            return
        self._undo.close()
        self.everywhere = everywhere
        for owner in (torch.nn.Module,) if everywhere else tuple(self._roots):
            self._undo.enter_context(_replaced_call(owner))


@contextlib.contextmanager
def _replaced_call(owner: type[torch.nn.Module]) -> Iterator[None]:
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    own = "__call__" in vars(owner)
    before = owner.__call__
    owner.__call__ = not_compiled(_observed(before, get_eval_frame_callback))
    try:
        yield
    finally:
        if own:
            owner.__call__ = before
        else:
            del owner.__call__


patches = _Patches()


def observe(limit: int, *, everywhere: bool) -> None:
    """From the next call on, calls nested less than `limit` deep are observed; 1 is the outermost alone.

    Whoever they are called on, or not `everywhere`: on the classes met so far as outermost, where 1 costs next to nothing.
    """
    global _limit
    _limit = limit
    if patches.everywhere != everywhere:
        patches.place(everywhere=everywhere)


def observing_everywhere() -> bool:
    """Whether calls are seen wherever they are made."""
    return patches.everywhere


@contextlib.contextmanager
def observed_calls() -> Iterator[None]:
    """Puts the frame around module calls, once, whoever asks first. Raises ImportError, see `acquire`."""
    patches.acquire()
    try:
        yield
    finally:
        patches.release()
