"""Tensor descriptors: Hopper's copy engine fetches a tile that one describes, which spares registers and warps."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from nsa.attention.kernels.packing import Packing

# Elements of q from which on better kernels save more than describing tiles, and Triton's dispatch, take.
WORTHWHILE = 2**25
_ALIGNMENT = 16  # bytes, of every row that is described
_DIMS = (64, 128)


def describable(q: Tensor, k: Tensor, v: Tensor, packing: Packing | None, dout: Tensor | None = None) -> bool:
    """Whether tiles of these [B, T, H, D] can be described, and whether it is worth it."""
    return (
        q.numel() >= WORTHWHILE  # first, as short calls are bound by Python
        and packing is None  # a tile may hold tokens of two sequences
        and q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[3] in _DIMS
        and v.shape[3] in _DIMS
        and k.shape[1] > 0
        and not any(x.data_ptr() % _ALIGNMENT for x in (q, k, v))
        and (dout is None or dout.data_ptr() % _ALIGNMENT == 0)
        and is_hopper(q.device)
    )


@lru_cache
def is_hopper(device: torch.device) -> bool:
    """Whether kernels may be what they are there; a CPU, which interprets them, counts as one."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) == (9, 0)


def tokens_descriptor(x: Tensor, rows: int) -> TensorDescriptor:
    """Tiles of `rows` tokens of one head of x [B, T, H, D]."""
    batch, n_tokens, heads, dim = x.shape
    strides = [n_tokens * heads * dim, heads * dim, 1]
    return TensorDescriptor(x, [batch, n_tokens, heads * dim], strides, [1, rows, dim])
