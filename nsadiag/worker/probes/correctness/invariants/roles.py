"""Roles of the tensors that a collective carries: gradients or parameters of the job, by where they lie in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from nsadiag.worker.probes.autograd import module_tree
from nsadiag.worker.probes.autograd.gradients import name_of

MOST_SHOWN = 4

# Models that have run, and optimizers that have stepped, in order: what belongs to neither has no role.
_roots: dict[int, weakref.ref[torch.nn.Module]] = {}
_optimizers: dict[int, weakref.ref[Any]] = {}


def met(root: torch.nn.Module) -> None:
    if module_tree.has_parameters(root):
        _roots[id(root)] = weakref.ref(root)


def stepping(optimizer: Any) -> int:
    """The optimizer's number, in the order of first steps."""
    known = _optimizers.get(id(optimizer))
    if known is None or known() is not optimizer:
        _optimizers[id(optimizer)] = weakref.ref(optimizer)
    return list(_optimizers).index(id(optimizer))


def living() -> list[tuple[int, Any]]:
    """Optimizers that have stepped, by their numbers."""
    found = [(number, held()) for number, held in enumerate(_optimizers.values())]
    return [(number, held) for number, held in found if held is not None]


def forget() -> None:
    _roots.clear()
    _optimizers.clear()


def held_by(optimizer: Any) -> list[tuple[str, torch.Tensor]]:
    """Its parameters with their names; one that no module was seen with is called by its place."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return [(name_of(p) or f"parameter {n}", p) for n, p in enumerate(held)]


def parameters() -> list[tuple[str, torch.Tensor]]:
    """All of models that have run and of optimizers that have stepped."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for reference in list(_roots.values()):
        root = reference()
        for name, parameter in module_tree.named_parameters(root) if root is not None else ():
            found.setdefault(id(parameter), (name_of(parameter) or name, parameter))
    for held in list(_optimizers.values()):
        optimizer = held()
        for name, parameter in held_by(optimizer) if optimizer is not None else ():
            found.setdefault(id(parameter), (name, parameter))
    return list(found.values())


def buffers() -> list[tuple[str, torch.Tensor]]:
    """Floating-point buffers of models that have run."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for reference in list(_roots.values()):
        root = reference()
        for name, buffer in module_tree.named_buffers(root) if root is not None else ():
            if buffer.is_floating_point() and buffer.numel() > 1:
                found.setdefault(id(buffer), (name, buffer))
    return list(found.values())


def roles_of(tensors: Iterable[torch.Tensor]) -> list[str]:
    """`gradient NAME`, `parameter NAME`, `gradients` (as many elements as all of them), `activation` for what asks for a gradient."""
    asked = [tensor for tensor in tensors if not hasattr(tensor, "_local_tensor")]
    gradients: dict[int, str] = {}
    held: dict[int, str] = {}
    elements = 0
    for name, parameter in parameters():
        gradient = parameter.grad
        if hasattr(parameter, "_local_tensor"):
            continue
        held[parameter.data_ptr()] = name
        if gradient is not None and gradient.layout == torch.strided:
            gradients[gradient.data_ptr()] = name
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
