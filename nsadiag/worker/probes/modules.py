"""Modules in forward, by qualified name; a recomputation inside backward is tagged as one."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.worker import runtime
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.backward import is_running as backward_is_running
from nsadiag.worker.probes.patch import harmless, replaced

# Called with each root module the first time it runs; probes that need parameters subscribe here.
on_root: list[Callable[[torch.nn.Module], None]] = []
_depth = threading.local()
# Weak: the probe must not keep a model alive. Keyed by id, since modules may define __eq__.
_names: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}


def qualified(name: str) -> str:
    """The name the user knows: without the layers that wrappers add."""
    parts = [
        p
        for p in name.split(".")
        if p not in ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    ]
    return ".".join(parts)


def _name_of(module: torch.nn.Module, rank: runtime.Runtime) -> int:
    known = _names.get(id(module))
    if known is None or known[0]() is not module:
        _learn(module, rank)
        known = _names[id(module)]
    return known[1]


def _learn(root: torch.nn.Module, rank: runtime.Runtime) -> None:
    """Names all modules under a root that is met for the first time."""
    for name, module in root.named_modules():
        number = rank.names(qualified(name) or type(root).__name__)
        _names[id(module)] = (weakref.ref(module), number)
    for subscriber in on_root:
        subscriber(root)


# `light` records the outermost forward only: two events a module are dear in a small step.
_every_module = os.environ.get("NSADIAG_PROBES", "light") != "light"


@harmless
def _enter(module: torch.nn.Module, _args: Any) -> None:
    rank = runtime.ensure_rank()
    if rank is None:
        return
    depth = getattr(_depth, "value", 0)
    _depth.value = depth + 1
    recomputed = backward_is_running()
    name = _name_of(module, rank)
    if depth or recomputed:
        if _every_module:
            rank.emit(Kind.MODULE, Phase.BEGIN, name, recomputed)
    else:
        rank.emit(Kind.FORWARD, Phase.BEGIN, name, 0, 0, rank.names("\t" + user_place()))


@harmless
def _leave(module: torch.nn.Module, _args: Any, _output: Any) -> None:
    rank = runtime.current()
    depth = getattr(_depth, "value", 0)
    if rank is None or not depth:
        return
    _depth.value = depth - 1
    recomputed = backward_is_running()
    if depth == 1 and not recomputed:
        rank.emit(Kind.FORWARD, Phase.END, _name_of(module, rank))
    elif _every_module:
        rank.emit(Kind.MODULE, Phase.END, _name_of(module, rank), recomputed)


@contextlib.contextmanager
def modules() -> Iterator[None]:
    """Global forward hooks, which leave no trace in the user's model.

    Dynamo would trace them into the graph, and a graph break a module would change what is compiled:
    from the first torch.compile on they are gone.
    """
    before = nn_module.register_module_forward_pre_hook(_enter)
    after = nn_module.register_module_forward_hook(_leave, always_call=True)
    compile_ = torch.compile

    def compile_without_hooks(*args: Any, **kwargs: Any) -> Any:
        before.remove()
        after.remove()
        rank = runtime.current()
        if rank is not None:
            rank.gap("modules are not traced: the job uses torch.compile")
        return compile_(*args, **kwargs)

    with replaced(torch, "compile", compile_without_hooks):
        try:
            yield
        finally:
            before.remove()
            after.remove()
