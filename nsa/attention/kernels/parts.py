"""Sums of partial gradients: every part in its own slab, added up in order, so that the bits never differ."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.tiles import ceil_div


@triton.jit
def _sum(PARTS, OUT, n, N_PARTS: tl.constexpr, ELEMENTS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    total = tl.zeros([ELEMENTS], tl.float32)
    for part in range(N_PARTS):
        total += tl.load(PARTS + (part + tl.full([], 0, tl.int64)) * n + at, mask=at < n, other=0.0)
    tl.store(OUT + at, total.to(OUT.dtype.element_ty), mask=at < n)


@Launcher
@triton.jit
def _sum_parts(
    DK_PARTS, DV_PARTS, DK, DV, k_size, v_size, N_PARTS: tl.constexpr, ELEMENTS: tl.constexpr
):  # fmt: skip
    if tl.program_id(1) == 0:
        _sum(DK_PARTS, DK, k_size, N_PARTS, ELEMENTS)
    else:
        _sum(DV_PARTS, DV, v_size, N_PARTS, ELEMENTS)


def sum_parts(dk_parts: Tensor, dv_parts: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over the first axis of both, fp32, as gradients of k and v, in their dtypes."""
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    size = max(k.numel(), v.numel())
    _sum_parts[(ceil_div(size, 1024), 2)](
        dk_parts,
        dv_parts,
        dk,
        dv,
        k.numel(),
        v.numel(),
        N_PARTS=dk_parts.shape[0],
        ELEMENTS=1024,
        num_warps=4,
    )
    return dk, dv
