"""Roles of the tensors that a collective carries: gradients or parameters of the job, by where they lie in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from nsadiag.worker.probes.autograd import module_tree, roots
from nsadiag.worker.probes.autograd.gradients import name_of
from nsadiag.worker.probes.values import stepped_by

MOST_SHOWN = 4

# Optimizers that have stepped, in the order of their first steps, and the thread that steps each.
_optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}


def stepping(optimizer: Any) -> int:
    """The optimizer's number, in the order of first steps."""
    # One that is made where another was has its number.
    _optimizers[id(optimizer)] = weakref.ref(optimizer), roots.here()
    return list(_optimizers).index(id(optimizer))


def living() -> list[tuple[int, Any]]:
    """Optimizers that have stepped, by their numbers."""
    found = [(number, held()) for number, (held, _) in enumerate(list(_optimizers.values()))]
    return [(number, held) for number, held in found if held is not None]


def ours() -> list[tuple[int, Any]]:
    """Those of `living` that the calling thread steps: gradients of others may be replaced by a backward that runs now."""
    here = roots.here()
    return [(number, held) for number, held in living() if _optimizers[id(held)][1] == here]


def forget() -> None:
    _optimizers.clear()


def name(found: str, parameter: torch.Tensor) -> str:
    """The name in the whole model, or the one that it was found by."""
    return name_of(parameter) or found


def held_by(optimizer: Any) -> list[tuple[str, torch.Tensor]]:
    """Its parameters with their names; one that no module was seen with is called by its place."""
    held = stepped_by(optimizer)
    return [(name_of(p) or f"parameter {n}", p) for n, p in enumerate(held)]


def parameters() -> list[tuple[str, torch.Tensor]]:
    """All of models that train and of optimizers that have stepped."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for root in roots.trained():
        for own, parameter in module_tree.named_parameters(root):
            found.setdefault(id(parameter), (name(own, parameter), parameter))
    for _, optimizer in living():
        for own, parameter in held_by(optimizer):
            found.setdefault(id(parameter), (own, parameter))
    return list(found.values())


def our_parameters() -> list[tuple[str, torch.Tensor]]:
    """Those whose values and gradients the calling thread may read."""
    theirs = _theirs()
    return [(own, parameter) for own, parameter in parameters() if id(parameter) not in theirs]


def _theirs() -> set[int]:
    """By id, parameters of models that other threads run; those in no model are of the thread that steps their optimizer."""
    trained = roots.trained()
    mine = {id(root) for root in roots.ours(trained)}
    others = [root for root in trained if id(root) not in mine]
    theirs = {id(p) for root in others for _, p in module_tree.named_parameters(root)}
    if len(ours()) < len(living()):
        known = {id(p) for root in trained for _, p in module_tree.named_parameters(root)}
        my_own = {id(p) for _, optimizer in ours() for _, p in held_by(optimizer)}
        held = {id(p) for _, optimizer in living() for _, p in held_by(optimizer)}
        theirs |= held - known - my_own
    return theirs


def our_buffers() -> list[tuple[str, torch.Tensor]]:
    """Floating-point buffers of models that the calling thread trains."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for root in roots.ours(roots.trained()):
        for own, buffer in module_tree.named_buffers(root):
            if buffer.is_floating_point() and buffer.numel() > 1:
                found.setdefault(id(buffer), (own, buffer))
    return list(found.values())


def roles_of(tensors: Iterable[torch.Tensor]) -> list[str]:
    """`gradient NAME`, `parameter NAME`, `gradients` (as many elements as all of them), `activation` for what asks for a gradient."""
    asked = [tensor for tensor in tensors if not hasattr(tensor, "_local_tensor")]
    gradients: dict[int, str] = {}
    held: dict[int, str] = {}
    elements, theirs = 0, _theirs()
    for own, parameter in parameters():
        if hasattr(parameter, "_local_tensor"):
            continue
        held[parameter.data_ptr()] = own
        gradient = parameter.grad if id(parameter) not in theirs else None
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
