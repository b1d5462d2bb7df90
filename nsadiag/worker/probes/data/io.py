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
from typing import Any

import torch

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.place import user_place
from nsadiag.worker.probes import suppressed_exceptions
from nsadiag.worker.probes.patch import harmless, replaced, stands_for
from nsadiag.worker.probes.values import is_a

MAX_PATHS = 1024  # a file a step must not fill the table of names
CHECKPOINT = "torch.distributed.checkpoint"
# Each function by the module that defines it, and what to call it.
DISTRIBUTED = (
    (f"{CHECKPOINT}.state_dict_saver", "save"),
    (f"{CHECKPOINT}.state_dict_saver", "async_save"),
    (f"{CHECKPOINT}.state_dict_loader", "load"),
)
POSITIONS = {"torch.save": 1, "torch.load": 0}
OF_OPTIMIZER = "optimizer.load_state_dict"
PATH_NAMES = ("f", "checkpoint_id", "storage_writer", "storage_reader", "path")
_paths: set[str] = set()


class _Here(threading.local):
    inside = False  # a distributed save is many small ones


_here = _Here()


def _path(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The source or destination: a path, an open file's or a storage's path, or else what kind of object it is."""
    position = POSITIONS.get(op, len(args))
    given = [kwargs[name] for name in PATH_NAMES if kwargs.get(name) is not None]
    for value in (*given, *args[position : position + 1]):
        candidates = (value, _kept(value, "path"), _kept(value, "name"))
        found = next((c for c in candidates if is_a(c, str, PurePath)), None)
        return _bounded(mask_text(os.fspath(found)) if found is not None else f"<{type(value).__name__}>")
    return "<unknown>"


def _kept(value: Any, name: str) -> Any:
    """An attribute that is there: what is computed when it is asked for is the user's code."""
    if type(value).__module__ == "_io":
        return getattr(value, name, None)
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:
        return None


def _bounded(path: str) -> str:
    if path not in _paths:
        if len(_paths) >= MAX_PATHS:
            return "<one of many>"
        _paths.add(path)
    return path


@harmless
def _begin(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    rank = session.current()
    if rank is None:
        return None
    name = rank.names(op if op == OF_OPTIMIZER else f"{op} {_path(op, args, kwargs)}")
    rank.emit(Kind.IO, Phase.BEGIN, name, 0, 0, rank.names("\t" + user_place()))
    return name


@harmless
def _end(name: int) -> None:
    rank = session.current()
    if rank is not None:
        rank.emit(Kind.IO, Phase.END, name)


def _observed(call: Callable[..., Any], op: str) -> Callable[..., Any]:
    @stands_for(call)
    def io(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or _here.inside:
            return call(*args, **kwargs)
        name = _begin(op, args, kwargs)
        _here.inside = True
        try:
            return call(*args, **kwargs)
        except Exception as error:
            suppressed_exceptions.left(error, op)
            raise
        finally:
            _here.inside = False
            if name is not None:
                _end(name)

    return io


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
