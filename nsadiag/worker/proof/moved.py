"""Parameters and inputs, moved in their last bits: how far two runs drift apart that differ by nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

LAST_BITS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


class Mover:
    """Moves each tensor by a share of itself, up or down, and draws from a generator of its own."""

    def __init__(self, share: float, seed: int) -> None:
        self._share = share
        self._generator = torch.Generator().manual_seed(seed)
        self._done: set[int] = set()

    def parameters(self, module: torch.nn.Module) -> None:
        """In place, each once."""
        with torch.no_grad():
            for parameter in module.parameters():
                if id(parameter) not in self._done and parameter.is_floating_point():
                    self._done.add(id(parameter))
                    local = getattr(parameter, "_local_tensor", parameter)
                    local.copy_(self._moved(local))

    def inputs(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Copies, but for what is no plain tensor or comes from another module."""
        moved: tuple[Any, Any] = _pytree.tree_map(self._input, (args, kwargs))
        return moved

    def _input(self, value: Any) -> Any:
        is_plain = type(value) is torch.Tensor and value.is_floating_point() and not value.requires_grad
        return self._moved(value) if is_plain else value

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        way = torch.randint(0, 2, tensor.shape, generator=self._generator) * 2 - 1
        share = max(self._share, LAST_BITS.get(tensor.dtype, 0.0))
        return (tensor.double() * (1 + share * way.to(tensor.device))).to(tensor.dtype)
