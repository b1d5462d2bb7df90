"""Roles of the tensors that a collective carries: gradients or parameters of the job, by where they lie in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from threading import get_ident
from typing import Any

import torch

from nsadiag.worker.probes.autograd import module_tree
from nsadiag.worker.probes.autograd.gradients import name_of

MOST_SHOWN = 4

# Models that have run, and optimizers that have stepped, in order: what belongs to neither has no role.
_roots: dict[int, weakref.ref[torch.nn.Module]] = {}
_now: dict[int, weakref.ref[torch.nn.Module]] = {}  # those that have run in this step, also without gradients
_optimizers: dict[int, weakref.ref[Any]] = {}
_threads: dict[int, int] = {}  # that step them, by id


def met(root: torch.nn.Module, *, trains: bool = True) -> None:
    """A model runs."""
    if module_tree.has_parameters(root):
        _now[id(root)] = weakref.ref(root)
        if trains:
            _roots[id(root)] = _now[id(root)]


def turn() -> None:
    """The next step begins."""
    _now.clear()


def stepping(optimizer: Any) -> int:
    """The optimizer's number, in the order of first steps."""
    known = _optimizers.get(id(optimizer))
    if known is None or known() is not optimizer:
        _optimizers[id(optimizer)] = weakref.ref(optimizer)
    _threads[id(optimizer)] = get_ident()
    return list(_optimizers).index(id(optimizer))


def living() -> list[tuple[int, Any]]:
    """Optimizers that have stepped, by their numbers."""
    found = [(number, held()) for number, held in enumerate(_optimizers.values())]
    return [(number, held) for number, held in found if held is not None]


def ours() -> list[tuple[int, Any]]:
    """Those of `living` that the calling thread steps: gradients of others may be made by a backward that runs now."""
    return [(number, held) for number, held in living() if _threads.get(id(held)) == get_ident()]


def forget() -> None:
    _threads.clear()
    _roots.clear()
    _now.clear()
    _optimizers.clear()


def roots() -> list[torch.nn.Module]:
    """Models that have run."""
    return [root for reference in list(_roots.values()) if (root := reference()) is not None]


def running() -> list[torch.nn.Module]:
    """Models that have run in this step, also those that do so without gradients."""
    return [root for reference in list(_now.values()) if (root := reference()) is not None]


def name(found: str, parameter: torch.Tensor) -> str:
    """The name in the whole model, or the one that it was found by."""
    return name_of(parameter) or found


def held_by(optimizer: Any) -> list[tuple[str, torch.Tensor]]:
    """Its parameters with their names; one that no module was seen with is called by its place."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return [(name_of(p) or f"parameter {n}", p) for n, p in enumerate(held)]


def parameters() -> list[tuple[str, torch.Tensor]]:
    """All of models that have run and of optimizers that have stepped."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for root in roots():
        for own, parameter in module_tree.named_parameters(root):
            found.setdefault(id(parameter), (name(own, parameter), parameter))
    for held in list(_optimizers.values()):
        optimizer = held()
        for own, parameter in held_by(optimizer) if optimizer is not None else ():
            found.setdefault(id(parameter), (own, parameter))
    return list(found.values())


def buffers() -> list[tuple[str, torch.Tensor]]:
    """Floating-point buffers of models that have run."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for root in roots():
        for own, buffer in module_tree.named_buffers(root):
            if buffer.is_floating_point() and buffer.numel() > 1:
                found.setdefault(id(buffer), (own, buffer))
    return list(found.values())


def roles_of(tensors: Iterable[torch.Tensor]) -> list[str]:
    """`gradient NAME`, `parameter NAME`, `gradients` (as many elements as all of them), `activation` for what asks for a gradient."""
    asked = [tensor for tensor in tensors if not hasattr(tensor, "_local_tensor")]
    gradients: dict[int, str] = {}
    held: dict[int, str] = {}
    elements = 0
    for own, parameter in parameters():
        gradient = parameter.grad
        if hasattr(parameter, "_local_tensor"):
            continue
        held[parameter.data_ptr()] = own
        if gradient is not None and gradient.layout == torch.strided:
            gradients[gradient.data_ptr()] = own
            elements += gradient.numel()
    return [_role(tensor, gradients, held, elements) for tensor in asked[:MOST_SHOWN]]


def _role(tensor: torch.Tensor, gradients: dict[int, str], held: dict[int, str], elements: int) -> str:
    if tensor.layout != torch.strided or not tensor.numel():
        return "other"
    at = tensor.data_ptr()
    if at in gradients:
        return f"gradient {gradients[at]}"
    if at in held:
        return f"parameter {held[at]}"
    return "gradients" if elements and tensor.numel() == elements else "other"
