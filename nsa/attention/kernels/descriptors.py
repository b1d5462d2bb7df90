"""Tensor descriptors: Hopper's copy engine (TMA) fetches the tiles they describe, which saves registers."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

# Elements of q from which on faster kernels save more time than making descriptors costs.
WORTHWHILE = 2**24
_ALIGNMENT = 16  # bytes, of every row that is described
_DIMS = (64, 128)


def describable(q: Tensor, *others: Tensor | None) -> bool:
    """Whether tiles of these tensors [B, T, H, D] can be described, and q is large enough to gain from it."""
    return (
        q.numel() >= WORTHWHILE  # first, as short calls are bound by Python
        and q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and is_hopper(q.device)
        and all(_describable(x) for x in (q, *others) if x is not None)
    )


def _describable(x: Tensor) -> bool:
    return x.shape[3] in _DIMS and x.shape[1] > 0 and x.data_ptr() % _ALIGNMENT == 0


@lru_cache
def is_hopper(device: torch.device) -> bool:
    """Whether `device` is a Hopper GPU; a CPU, where kernels are interpreted, counts as one."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) == (9, 0)


def tokens_descriptor(x: Tensor, rows: int) -> TensorDescriptor:
    """Tiles of `rows` tokens of one head of x [B, T, H, D]."""
    batch, n_tokens, heads, dim = x.shape
    # Not by its constructor, whose checks take longer than a launch; `describable` has made them.
    tiles = object.__new__(TensorDescriptor)
    tiles.base, tiles.shape = x, [batch, n_tokens, heads * dim]
    tiles.strides, tiles.block_shape, tiles.padding = (
        [n_tokens * heads * dim, heads * dim, 1],
        [1, rows, dim],
        "zero",
    )
    return tiles
