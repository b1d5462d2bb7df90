"""Module calls, seen from one frame around `nn.Module.__call__`: no hook on any module, no trace in a pickled model.

Global forward hooks would send every module down the slow path of `_call_impl`, and Dynamo traces them. The frame is
around every module, or around the classes of the outermost ones alone: there it asks with every call what a class
without it would have found, since `torch.fx` and others patch `nn.Module.__call__` while they work.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic
from types import FunctionType, MethodType
from typing import Any, Protocol

import torch
import torch.fx._symbolic_trace as fx_trace
from torch.compiler import is_compiling, is_dynamo_compiling

from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.probes import suppressed_exceptions
from nsadiag.worker.probes.autograd import module_tree, roots
from nsadiag.worker.probes.patch import dressed, failed, not_compiled, replaced, unseen
from nsadiag.worker.recorder import Recorder
from nsadiag.worker.replacement import leave_no_frame

# Bound here: where a torch has neither, the probe is left out, and no call of the job's fails.
_is_fx_tracing: Callable[[], bool] = (
    getattr(fx_trace, "is_fx_symbolic_tracing", None) or fx_trace.is_fx_tracing
)

EVERY_DEPTH = 1 << 30
FREE = 8  # calls of outermost modules in a step that are looked at however short they are
MOST = 64  # calls that are passed over at most
# The share of the calls' time that looking at them may be, and the most that a look counts: one that learns is no measure.
SHARE, LONGEST_LOOK_S = 0.03, 50e-6
COMPILES = "torch._dynamo.callback"
WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

# Called with each root module the first time it runs; probes that need parameters subscribe here.
on_root: list[Callable[[torch.nn.Module], None]] = []
# Called with each outermost module, and what it is called with.
on_call: list[Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]] = []
# Called with each outermost module that does not train.
on_evaluating: list[Callable[[torch.nn.Module], None]] = []
# What the modules probe does around every observed call: (rank, number, depth, what it is called with), and
# (number, depth, output).
Enter = Callable[[Recorder, int, int, tuple[Any, ...], dict[str, Any]], None]
Leave = Callable[[int, int, Any], None]
_enter: Enter | None = None
_leave: Leave | None = None


class Inner(Protocol):
    """An observer of every observed call, with its values."""

    def entered(self, module: torch.nn.Module, nested: int, args: Any, kwargs: Any) -> None: ...

    def left(self, nested: int, output: Any) -> None: ...


inner: Inner | None = None

calls_by_depth: Counter[int] = Counter()  # observed since the last review of the budget
# Weak: the probe must not keep a model alive. Keyed by id, since modules may define __eq__.
_Known = tuple[weakref.ref[torch.nn.Module], int, roots.Owner]
_names: dict[int, _Known] = {}


def qualified(name: str) -> str:
    """The name the user knows: without the layers that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def name_of(module: torch.nn.Module, rank: Recorder) -> int:
    """The number of the module's qualified name; a module under no known root becomes one."""
    return _known(module, rank)[1]


def owner_of(module: torch.nn.Module, rank: Recorder) -> roots.Owner:
    """The owner of the model that the module is part of; a module under no known root becomes one."""
    return _known(module, rank)[2]


def _known(module: torch.nn.Module, rank: Recorder) -> _Known:
    known = _names.get(id(module))
    if known is None or known[0]() is not module:
        _learn(module, rank)
        known = _names[id(module)]
    return known


def known_number(module: torch.nn.Module) -> int:
    """The number of its qualified name; 0 of a module that was never met."""
    known = _names.get(id(module))
    return known[1] if known is not None and known[0]() is module else 0


def _learn(root: torch.nn.Module, rank: Recorder) -> None:
    """Names all modules under a root that is met for the first time."""
    patches.add_root(root)
    owner = roots.met(root)
    for name, module in module_tree.named_modules(root):
        number = rank.names(qualified(name) or type(root).__name__)
        _names[id(module)] = (weakref.ref(module), number, owner)
    for subscriber in on_root:
        subscriber(root)


@contextlib.contextmanager
def entered() -> Iterator[list[int]]:
    """Fills the list with the numbers of the modules that code in the block calls itself, however deep it is nested."""
    before = calls.limit, calls.entered, calls.entered_at
    calls.limit, calls.entered, calls.entered_at = max(calls.limit, calls.depth + 1), [], calls.depth
    try:
        yield calls.entered
    finally:
        calls.limit, calls.entered, calls.entered_at = before


@contextlib.contextmanager
def around_calls(enter: Enter, leave: Leave) -> Iterator[None]:
    """Has the two called around every observed call."""
    global _enter, _leave
    _enter, _leave = enter, leave
    try:
        yield
    finally:
        _enter = _leave = None


class _Calls:
    """The state of the calls that run, and what is done around one.

    The frames refer to nothing else of ours: a class that is pickled by value with a frame on it (cloudpickle, of a
    script's own classes) takes along None in its place, and works where nsadiag is not installed.
    """

    def __init__(self) -> None:
        self.depth = 0  # of nested calls, on whichever thread: two threads in forward at once see fewer of each other's
        self.limit = EVERY_DEPTH  # calls nested deeper than this are not looked at
        # Numbers of the modules that the checkpointed function running now has entered itself, and how deep it is nested.
        self.entered: list[int] | None = None
        self.entered_at = 0
        self.passing = (
            0  # outermost calls to come that are not looked at, as they are too short for it (`probes.rests`)
        )
        self.free = FREE  # of those to come, how many are looked at however short they are
        self.sparing = False  # whether any may be passed over

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def observe(
        self, call: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The module's call, with an event on either side."""
        nested = self.depth
        if not nested and _is_transformed():
            return call(*args, **kwargs)
        number, output = 0, None
        began = started = 0.0 if nested or self.free else monotonic()
        try:
            number = self._enter(module, nested, args, kwargs)
            # Not earlier: a signal handler may raise between any two calls of ours.
            self.depth = nested + 1
            if started:
                began = monotonic()
            output = call(*args, **kwargs)
            return output
        except Exception as error:
            self.left(error)
            raise
        finally:
            self.depth = nested
            ended = monotonic() if started else 0.0
            if number and _leave is not None:
                try:
                    _leave(number, nested, output)
                except Exception as error:
                    failed(_Calls.observe, error)
            if inner is not None:
                inner.left(nested, output)
            if started:
                self.passing = self.passed_over(began - started + monotonic() - ended, ended - began)
            elif not nested:
                self.free -= 1

    def left(self, error: Exception) -> None:
        """An exception leaves an outermost call."""
        suppressed_exceptions.left(error, "forward")

    def passed_over(self, look_s: float, call_s: float) -> int:
        """Number of calls as short as that which are passed over, for one that it took so long to look at; 0 where it may have peers."""
        rank = session.recorded.rank
        if rank is None or rank.world_size > 1 or not self.sparing:
            return 0
        return min(int(min(look_s, LONGEST_LOOK_S) / (SHARE * call_s)) if call_s > 0 else MOST, MOST)

    def _enter(
        self, module: torch.nn.Module, nested: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int:
        """The module's number, 0 where it is not recorded."""
        number = 0
        # Not through `harmless`, which costs a frame: this runs around every module where probes are full.
        try:
            rank = session.recorded.rank or session.ensure_rank()
            if rank is not None:
                known = _names.get(id(module))
                if known is None or known[0]() is not module:
                    known = _known(module, rank)
                number = known[1]
                calls_by_depth[nested] += 1
                if self.entered is not None and nested == self.entered_at:
                    self.entered.append(number)
                if _enter is not None:
                    _enter(rank, number, nested, args, kwargs)
                if inner is not None:
                    inner.entered(module, nested, args, kwargs)
                if not nested:
                    roots.called(known[2])
            if not nested:
                for subscriber in on_call:
                    subscriber(module, args, kwargs)
                if not module_tree.is_training(module):
                    for each in on_evaluating:
                        each(module)
        except Exception as error:
            failed(_Calls.observe, error)
        return number


calls = _Calls()
for _method in (_Calls.observe, _Calls._enter, _Calls.left, _Calls.passed_over):
    unseen(_method)


def _is_transformed() -> bool:
    """Whether the call is not the job's own: it is traced, exported, or a function is made of it."""
    try:
        return (
            _is_fx_tracing()
            # By a flag of the dispatcher: functions that read the stack of transforms make one for the thread that asks, and
            # from then on each node of the autograd graph copies it, which costs a short step 2 %.
            or torch._C._are_functorch_transforms_active()
            or torch._C._get_tracing_state() is not None
            or is_compiling()
        )
    except Exception as error:  # a torch that has one of these no longer: the call is the job's all the same
        failed(_is_transformed, error)
        return True


not_compiled(_is_transformed)


def _around_all(original: Callable[..., Any], compiling: Callable[[], Any]) -> Callable[..., Any]:
    """For nn.Module itself."""
    here, is_traced = calls, is_dynamo_compiling

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        # Dynamo folds this test, so that what it traces is the original alone.
        if is_traced():
            return original(self, *args, **kwargs)
        try:
            # Under torch.compile whatever Python we ran here would be compiled, too: the outermost call is all there is.
            if here.depth >= here.limit or compiling() is not None:
                return original(self, *args, **kwargs)
            return here.observe(MethodType(original, self), self, args, kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    return dressed(__call__, original)


def _around_own(
    owner: type[torch.nn.Module], original: Callable[..., Any], compiling: Callable[[], Any]
) -> Callable[..., Any]:
    """For a class of outermost modules, whether or not it has a `__call__` of its own."""
    here: _Calls | None = calls
    is_traced, cut = is_dynamo_compiling, _Cut()
    inherited = "__call__" not in vars(owner)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return original(self, *args, **kwargs)
        try:
            # Inner modules of that class come here as well, and go by.
            if here is not None and here.depth < here.limit:
                if here.passing and not here.depth:
                    here.passing -= 1
                    try:
                        here.depth = 1  # what it calls is no outermost module
                        if inherited and isinstance(self, owner):
                            return super(owner, self).__call__(*args, **kwargs)
                        return original(self, *args, **kwargs)
                    except Exception as error:
                        here.left(error)
                        raise
                    finally:
                        here.depth = 0
                if compiling() is None:
                    call = MethodType(original, self)
                    if inherited and isinstance(self, owner):
                        call = super(owner, self).__call__
                    return here.observe(call, self, args, kwargs)
            if inherited and isinstance(self, owner):
                return super(owner, self).__call__(*args, **kwargs)
            return original(self, *args, **kwargs)
        except BaseException as error:
            if cut is not None:
                cut(error)
            raise

    return dressed(__call__, original)


class _Cut:
    """`leave_no_frame`, and None out of a pickle."""

    def __call__(self, error: BaseException) -> None:
        leave_no_frame(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class _Patches:
    """The places of the frame: around every module, or around the classes of the roots alone."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._roots: set[type[torch.nn.Module]] = set()
        self._users = 0
        self._compiling: Callable[[], Any] | None = None
        self.everywhere = False
        self.compiled = False  # whether Dynamo has compiled anything yet

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
        first = self._compiling is None
        if first:
            # Once: a program's own `__import__` is not to see it in the middle of its training.
            self._compiling = _compiling()
        self._users += 1
        if first:
            when_imported(COMPILES, self._stay_out_of_graphs)
        elif COMPILES in sys.modules:
            self._stay_out_of_graphs()
        if self._users == 1:
            observe(EVERY_DEPTH, everywhere=True)

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self._undo.close()
            self.everywhere = False
            if COMPILES in sys.modules:
                with tolerated(ValueError):  # the program has cleared them
                    sys.modules[COMPILES].callback_handler.remove_start_callback(self._compiles)
            # Somebody may have kept a frame of ours, and put it back later.
            calls.limit = 0
            # Numbers are those of a recording that may be over.
            _names.clear()
            roots.forget()

    def _stay_out_of_graphs(self) -> None:
        """Has the frame on the roots alone from the first compilation on.

        Graphs are guarded by what nn.Module had for a `__call__` when they were traced: they would be compiled again
        when the frame moves.
        """
        handler = sys.modules[COMPILES].callback_handler
        if self._users and self._compiles not in handler.start_callbacks:
            handler.register_start_callback(self._compiles)

    def _compiles(self, *_about: Any) -> None:
        """By torch, which says nothing of the compilation up to 2.6."""
        try:
            self.compiled = True
            _apply()
        except Exception as error:
            failed(_Patches._compiles, error)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Has no class a frame inside the block; after it, classes that models have been given there have one, too."""
        self._undo.close()
        try:
            yield
        finally:
            self._roots.update(type(root) for root in roots.living())
            self.place(everywhere=self.everywhere)

    def place(self, *, everywhere: bool) -> None:
        """Moves the frame. On a class it is found before the one of nn.Module, and nobody pays for it but the roots."""
        if not self._users or self._compiling is None:
            return
        self._undo.close()
        self.everywhere = everywhere
        for owner in (torch.nn.Module,) if everywhere else tuple(self._roots):
            self._undo.enter_context(_replaced_call(owner, self._compiling))


def _compiling() -> Callable[[], Any]:
    """A function that gives dynamo's callback in the calling thread: None outside of code that dynamo runs.

    Torch 2.6 hands out a reference that it does not own, 2.13 one that it does; between them one reference too many does no
    harm. Each call would take one from None, and where that is not immortal (before Python 3.12) the interpreter ends the
    job when none is left.

    Raises ImportError where this torch cannot say it.
    """
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    if torch.torch_version.TorchVersion(torch.__version__) >= (2, 9):
        return get_eval_frame_callback
    owns = ctypes.pythonapi.Py_IncRef
    owns.argtypes, owns.restype = [ctypes.py_object], None

    def owned() -> Any:
        found = get_eval_frame_callback()
        owns(found)
        return found

    return not_compiled(owned, what_it_calls=True)


@contextlib.contextmanager
def _replaced_call(owner: type[torch.nn.Module], compiling: Callable[[], Any]) -> Iterator[None]:
    # Past what a metaclass of the user's makes of the question.
    original: Any = type.__getattribute__(owner, "__call__")
    if not isinstance(original, FunctionType):
        yield  # an object that is called in place of a method: what it makes of `self` is its own business
        return
    if owner is torch.nn.Module:
        ours = _around_all(original, compiling)
    else:
        ours = _around_own(owner, original, compiling)
    # nn.Module has it by two names, and pickles find it by the other.
    aliases = [name for name in (original.__name__,) if vars(owner).get(name) is original]
    with contextlib.ExitStack() as undo:
        for name in dict.fromkeys(("__call__", *aliases)):
            undo.enter_context(replaced(owner, name, ours))
        yield


patches = _Patches()
_asked = EVERY_DEPTH, True  # by `observe`
_all = False


def observe(limit: int, *, everywhere: bool) -> None:
    """From the next call on, calls nested less than `limit` deep are observed; 1 is the outermost alone.

    Whoever they are called on, or not `everywhere`: on the classes met so far as outermost, where 1 costs next to nothing.
    """
    global _asked
    _asked = limit, everywhere
    _apply()


def observe_all(now: bool) -> None:
    """Has every call observed, whatever `observe` asks for meanwhile; when it is over, what was asked for last holds."""
    global _all
    _all = now
    _apply()


def _apply() -> None:
    limit, everywhere = (EVERY_DEPTH, True) if _all else _asked
    everywhere = everywhere and not patches.compiled
    calls.limit = limit
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
