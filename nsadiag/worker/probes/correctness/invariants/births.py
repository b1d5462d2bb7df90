"""The order in which parameters were put into modules and optimizers were made: what came later is in no earlier optimizer."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from nsadiag.worker.probes.autograd import module_tree, roots
from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.patch import harmless

_count = 0
# By id: tensors and optimizers may define __eq__.
_parameters: dict[int, tuple[module_tree.Reference, int]] = {}
_optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}


def unheld(stepping: Any) -> list[tuple[str, torch.Tensor]]:
    """Parameters that get gradients, that no optimizer holds which has stepped, and that were put into a model of this
    optimizer's after it was made.
    """
    made = _number(_optimizers, stepping)
    if made is None:
        return []
    mine = {id(p) for _, p in roles.held_by(stepping)}
    held = {id(p) for _, optimizer in roles.living() for _, p in roles.held_by(optimizer)}
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for root in roots.ours(roots.trained()):
        own = list(module_tree.named_parameters(root))
        if any(id(p) in mine for _, p in own):
            loose = ((n, p) for n, p in own if id(p) not in held and p.requires_grad and p.grad is not None)
            found |= {id(p): (roles.name(n, p), p) for n, p in loose if (_number(_parameters, p) or 0) > made}
    return list(found.values())


def _number(known: Mapping[int, tuple[Callable[[], Any], int]], each: Any) -> int | None:
    reference, number = known.get(id(each), (None, None))
    return number if reference is not None and reference() is each else None


@harmless
def remember(optimizer: Any) -> None:
    """It has just been made."""
    global _count
    if _number(_optimizers, optimizer) is None:
        _count += 1
        key = id(optimizer)
        _optimizers[key] = weakref.ref(optimizer, lambda _: _optimizers.pop(key, None)), _count


@harmless
def _registered(module: torch.nn.Module, name: str, parameter: Any) -> None:
    global _count
    if parameter is None:
        return
    key = id(parameter)
    if key not in _parameters:
        _count += 1
    # One that moves to another module, as a parametrization moves it, is as old as it was.
    _, number = _parameters.get(key, (None, _count))
    # No reference to itself: it would outlive the interpreter's modules, and be called without them.
    _parameters[key] = module_tree.Reference(module, name, parameter, lambda _: _forget(key)), number


def _forget(key: int) -> None:
    reference, _ = _parameters.get(key, (None, 0))
    if reference is not None and reference() is None:
        del _parameters[key]


@contextlib.contextmanager
def births() -> Iterator[None]:
    """Counts parameters as they are put into modules, beside optimizers as they are made."""
    hook = register_module_parameter_registration_hook(_registered)
    try:
        yield
    finally:
        hook.remove()
        _parameters.clear()
        _optimizers.clear()
