"""Checkpoints being written and read: torch.save, torch.load, and torch.distributed.checkpoint."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import PurePath
from time import monotonic
from typing import Any

import torch

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.probes import suppressed_exceptions
from nsadiag.worker.probes.patch import dressed, failed, not_compiled, replaced
from nsadiag.worker.probes.rests import are_default
from nsadiag.worker.probes.values import is_a
from nsadiag.worker.replacement import leave_no_frame

MAX_PATHS = 1024  # a file a step must not fill the table of names
CHECKPOINT = "torch.distributed.checkpoint"
# Each function by the module that defines it, and what to call it.
DISTRIBUTED = (
    (f"{CHECKPOINT}.state_dict_saver", "save"),
    (f"{CHECKPOINT}.state_dict_saver", "async_save"),
    (f"{CHECKPOINT}.state_dict_loader", "load"),
)
POSITIONS = {"torch.save": 1, "torch.load": 0}
_IO, _BEGIN, _END = int(Kind.IO), int(Phase.BEGIN), int(Phase.END)
OF_OPTIMIZER = "optimizer.load_state_dict"
PATH_NAMES = ("f", "checkpoint_id", "storage_writer", "storage_reader", "path")
_paths: dict[str, str] = {}  # as they are shown


class _Here(threading.local):
    inside = False  # a distributed save is many small ones


_here = _Here()


def _path(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The source or destination: a path, an open file's or a storage's path, or else what kind of object it is."""
    position = POSITIONS.get(op, len(args))
    given = [kwargs[name] for name in PATH_NAMES if kwargs.get(name) is not None] if kwargs else ()
    for value in (*given, *args[position : position + 1]):
        if type(value) is str:
            return _shown(_absolute(value))
        candidates = (value, _kept(value, "path"), _kept(value, "name"))
        found = next((c for c in candidates if is_a(c, str, PurePath)), None)
        if found is None:
            return f"<{type(value).__name__}>"
        # What a storage calls its path may be none of this machine's.
        is_of_this_machine = found is value or type(value).__module__ == "_io"
        return _shown(_absolute(os.fspath(found)) if is_of_this_machine else os.fspath(found))
    return "<unknown>"


def _absolute(path: str) -> str:
    """The same file by a name that is its own whatever the process's directory, or the address as it is."""
    if path.startswith("/") or "://" in path:
        return path
    try:
        return f"{os.getcwd()}/{path}"  # noqa: PTH109 - a Path takes microseconds
    except OSError as error:  # the directory is gone
        pass_on(error)
        return path


def _kept(value: Any, name: str) -> Any:
    """An attribute that is there: what is computed when it is asked for is the user's code."""
    if type(value).__module__ == "_io":
        return getattr(value, name, None)
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:
        return None


def _shown(path: str) -> str:
    """The path without secrets, for which the whole environment is gone through: once for each path."""
    shown = _paths.get(path)
    if shown is None:
        if len(_paths) >= MAX_PATHS:
            return "<one of many>"
        shown = _paths[path] = mask_text(path)
    return shown


# Guards itself, as a call that fails at once takes microseconds; it asks no tensor anything.
def _begin(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    rank = session.recorded.rank
    if rank is None:
        return None
    try:
        name: int = rank.names(op if op == OF_OPTIMIZER else f"{op} {_path(op, args, kwargs)}")
        rank.emit(_IO, _BEGIN, name, 0, 0, rank.places.here())
        return name
    except Exception as error:
        failed(_begin, error)
        return None


def _end(name: int) -> None:
    rank = session.recorded.rank
    if rank is not None:
        rank.emit(_IO, _END, name)


class _Burst:
    """Calls of one function of a rank without peers that fail faster than a record of each is made: most are passed over."""

    LONGEST_S, MOST = 1e-3, 256  # between two of them; that are passed over in a row

    def __init__(self) -> None:
        self.last_at = 0.0  # one of them failed, or was passed over
        self.passing = 0

    def is_on(self) -> bool:
        """Whether the call that begins is passed over."""
        self.passing -= 1
        now, before = monotonic(), self.last_at
        self.last_at = now
        if self.passing >= 0 and now - before < self.LONGEST_S:
            return True
        self.passing = 0
        return False

    def failed(self) -> None:
        """To be called as a call fails that was not passed over."""
        now, before = monotonic(), self.last_at
        self.last_at = now
        if now - before > self.LONGEST_S:
            return
        rank = session.recorded.rank
        if rank is not None and rank.world_size == 1 and are_default():
            self.passing = self.MOST


for _function in (_begin, _end, _Burst.is_on, _Burst.failed):
    not_compiled(_function, what_it_calls=True)


def _observed(call: Callable[..., Any], op: str) -> Callable[..., Any]:
    is_traced, here, burst = torch.compiler.is_dynamo_compiling, _here, _Burst()

    # Not by `stands_for`: a load that finds no file is over within what another frame, and an exception in it, costs.
    def io(*args: Any, **kwargs: Any) -> Any:
        observed = False
        name = None
        try:
            if is_traced() or here.inside:
                return call(*args, **kwargs)
            if burst.passing and burst.is_on():
                return call(*args, **kwargs)
            name = _begin(op, args, kwargs)
            observed = here.inside = True
            return call(*args, **kwargs)
        except BaseException as error:
            if observed and isinstance(error, Exception):
                suppressed_exceptions.left(error, op)
                burst.failed()
            leave_no_frame(error)
            raise
        finally:
            if observed:
                here.inside = False
                if name is not None:
                    _end(name)

    return dressed(io, call)


def _wrap_distributed(stack: ExitStack, module: str, name: str) -> None:
    """Patches it in the module that defines it, so that an async save's own thread is seen, and in the package that exports it."""
    call = getattr(sys.modules[module], name, None)
    if call is None:
        return
    stack.enter_context(replaced(sys.modules[module], name, _observed(call, f"{CHECKPOINT}.{name}")))


@contextlib.contextmanager
def io() -> Iterator[None]:
    """torch.save, torch.load, torch.distributed.checkpoint, an optimizer's load_state_dict, with the line that asks, and the path."""
    with ExitStack() as stack:
        optimizer = torch.optim.Optimizer
        load = _observed(optimizer.load_state_dict, OF_OPTIMIZER)
        stack.enter_context(replaced(optimizer, "load_state_dict", load))
        for name in ("save", "load"):
            call = getattr(torch, name)
            stack.enter_context(replaced(torch, name, _observed(call, f"torch.{name}")))
        for module, name in DISTRIBUTED:
            when_imported(module, functools.partial(_wrap_distributed, stack, module, name))
        yield
