"""The order in which parameters were put into modules and optimizers were made: what came later is in no earlier optimizer."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from nsadiag.worker.probes.autograd import module_tree, roots
from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.patch import harmless

_count = 0
# By id: tensors and optimizers may define __eq__.
_parameters: dict[int, tuple[weakref.ref[Any], int]] = {}
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


def _number(known: dict[int, tuple[weakref.ref[Any], int]], each: Any) -> int | None:
    reference, number = known.get(id(each), (None, None))
    return number if reference is not None and reference() is each else None


def remember(optimizer: Any) -> None:
    """It has just been made."""
    _remember(_optimizers, optimizer)


@harmless
def _remember(known: dict[int, tuple[weakref.ref[Any], int]], each: Any) -> None:
    global _count
    if _number(known, each) is None:
        _count += 1
        key = id(each)
        known[key] = weakref.ref(each, lambda _: known.pop(key, None)), _count


def _registered(module: torch.nn.Module, name: str, parameter: Any) -> None:
    if parameter is not None:
        _remember(_parameters, parameter)


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
