"""Gradients that are no longer as torch left them, by version alone.

No tensor is read: an algorithm that puts gradients of its own in their place is known by its writing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from nsadiag.worker.probes.values import groups_of


class Mark:
    """The first gradient of each optimizer, as it was at that moment."""

    def __init__(self) -> None:
        # By the optimizer's number: the parameter, its gradient, and that one's version.
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], weakref.ref[torch.Tensor], int]] = {}
        self._asked = False

    def set(self, optimizers: Iterable[tuple[int, Any]]) -> None:
        """Gradients of these are now as torch left them."""
        self._asked = False
        for number, optimizer in optimizers:
            held = (p for group in groups_of(optimizer) for p in group["params"])
            first = next(((p, p.grad) for p in held if p.grad is not None), None)
            if first is None:
                self._seen.pop(number, None)
            else:
                self._seen[number] = weakref.ref(first[0]), weakref.ref(first[1]), first[1]._version

    def written(self) -> list[int]:
        """Optimizers of which that gradient has been written or replaced since."""
        return [number for number, seen in self._seen.items() if _is_another(*seen)]

    def first_asked(self) -> bool:
        """Whether any has, asked at the first collective of gradients behind the mark: it writes them itself."""
        first, self._asked = not self._asked, True
        return first and bool(self.written())

    def forget(self) -> None:
        self._seen.clear()


since_backward = Mark()  # since backward, clipping or unscaling
since_step = Mark()  # since the optimizer used them


def _is_another(
    parameter: weakref.ref[torch.Tensor], gradient: weakref.ref[torch.Tensor], version: int
) -> bool:
    held = parameter()
    if held is None or held.grad is None:
        return False
    return held.grad._version != version or held.grad is not gradient()
