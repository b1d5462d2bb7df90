"""Gradients that are no longer as torch left them in the last backward, clipping or unscaling, by version alone.

No tensor is read: an algorithm that puts gradients of its own in their place is known by its writing.
"""

from __future__ import annotations

import weakref

import torch

from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.values import groups_of

# Of each optimizer the first parameter with a gradient, that gradient, and its version.
_marked: list[tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor], int]] = []
_told = False  # since that mark


def mark() -> None:
    """They are now as torch left them."""
    global _told
    _told = False
    _marked[:] = []
    for _, optimizer in roles.ours():
        held = (p for group in groups_of(optimizer) for p in group["params"])
        for parameter in held:
            gradient = parameter.grad
            if gradient is not None:
                _marked.append((weakref.ref(parameter), weakref.ref(gradient), gradient._version))
                break


def by_others() -> bool:
    """Whether one of them has been written or replaced since."""
    return any(_is_another(*each) for each in _marked)


def before_the_next() -> bool:
    """The same, asked at the first collective of gradients behind a mark: it writes them itself."""
    global _told
    first, _told = not _told, True
    return first and by_others()


def forget() -> None:
    _marked.clear()


def _is_another(
    parameter: weakref.ref[torch.Tensor], gradient: weakref.ref[torch.Tensor], version: int
) -> bool:
    held = parameter()
    if held is None or held.grad is None:
        return False
    return held.grad._version != version or held.grad is not gradient()
