"""Gradients arriving, parameter by parameter."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.worker import runtime
from nsadiag.worker.probes.modules import on_root, qualified
from nsadiag.worker.probes.patch import harmless

# By id, checked through the weak reference: tensors compare element by element.
_hooked: dict[int, weakref.ref[torch.Tensor]] = {}
_handles: list[Any] = []


def _arrival(rank: runtime.Runtime, name: int, index: int) -> Callable[[torch.Tensor], None]:
    gradient, point = int(Kind.GRADIENT), int(Phase.POINT)

    def arrived(_parameter: torch.Tensor) -> None:
        rank.emit(gradient, point, name, index)

    return arrived


@harmless
def _hook_parameters(root: torch.nn.Module) -> None:
    rank = runtime.current()
    if rank is None:
        return
    trainable = ((n, p) for n, p in root.named_parameters() if p.requires_grad)
    for index, (name, parameter) in enumerate(trainable):
        known = _hooked.get(id(parameter))
        if known is not None and known() is parameter:
            continue
        _hooked[id(parameter)] = weakref.ref(parameter)
        hook = _arrival(rank, rank.names(qualified(name)), index)
        _handles.append(parameter.register_post_accumulate_grad_hook(hook))


@contextlib.contextmanager
def gradients() -> Iterator[None]:
    """Hooks the parameters of each root module when it first runs."""
    on_root.append(_hook_parameters)
    try:
        yield
    finally:
        on_root.remove(_hook_parameters)
        for handle in _handles:
            handle.remove()
