"""Sums of partial gradients: every part in its own slab, added in a fixed order, so that results are bitwise repeatable."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.tiles import ceil_div

_ELEMENTS = 1024  # of a program


@triton.jit
def _sum(PARTS, OUT, n, N_PARTS: tl.constexpr, ELEMENTS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
    total = tl.zeros([ELEMENTS], tl.float32)
    for part in range(N_PARTS):
        total += tl.load(PARTS + (part + tl.full([], 0, tl.int64)) * n + at, mask=at < n, other=0.0)
    tl.store(OUT + at, total.to(OUT.dtype.element_ty), mask=at < n)


@triton.jit
def _sum_pair(K_PARTS, V_PARTS, K, V, k_size, v_size, which, N_PARTS: tl.constexpr, ELEMENTS: tl.constexpr):
    if which == 0:
        _sum(K_PARTS, K, k_size, N_PARTS, ELEMENTS)
    if which == 1:
        _sum(V_PARTS, V, v_size, N_PARTS, ELEMENTS)


@Launcher
@triton.jit
def _sum_parts(
    K0_PARTS, V0_PARTS, K0, V0, k0_size, v0_size, K1_PARTS, V1_PARTS, K1, V1, k1_size, v1_size,
    K2_PARTS, V2_PARTS, K2, V2, k2_size, v2_size,
    PARTS_0: tl.constexpr, PARTS_1: tl.constexpr, PARTS_2: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """Program (i, 2 * j) sums keys of pair j, (i, 2 * j + 1) values; a pair without parts is not there."""
    which = tl.program_id(1)
    if PARTS_0 > 0:
        _sum_pair(K0_PARTS, V0_PARTS, K0, V0, k0_size, v0_size, which, PARTS_0, ELEMENTS)
    if PARTS_1 > 0:
        _sum_pair(K1_PARTS, V1_PARTS, K1, V1, k1_size, v1_size, which - 2, PARTS_1, ELEMENTS)
    if PARTS_2 > 0:
        _sum_pair(K2_PARTS, V2_PARTS, K2, V2, k2_size, v2_size, which - 4, PARTS_2, ELEMENTS)


PerBranch = Sequence[Tensor | None]


def sum_parts(
    dk: PerBranch, dv: PerBranch, k: PerBranch, v: PerBranch
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The sums over the first axis of each of `dk` and `dv`, three or None, in the dtypes of `k` and `v`."""
    sums: tuple[list[Tensor | None], list[Tensor | None]] = ([None] * 3, [None] * 3)
    arguments: list[object] = []
    n_parts, largest = [0] * 3, 0
    for i, parts in enumerate(dk):
        if parts is None or parts.shape[0] == 1:
            if parts is not None:
                sums[0][i], sums[1][i] = parts[0], dv[i][0]
            arguments += [None, None, None, None, 0, 0]
            continue
        sums[0][i], sums[1][i] = torch.empty_like(k[i]), torch.empty_like(v[i])
        k_size, v_size, n_parts[i] = k[i].numel(), v[i].numel(), parts.shape[0]
        arguments += [parts, dv[i], sums[0][i], sums[1][i], k_size, v_size]
        largest = max(largest, k_size, v_size)
    if largest:
        _sum_parts[(ceil_div(largest, _ELEMENTS), 6)](
            *arguments,
            PARTS_0=n_parts[0],
            PARTS_1=n_parts[1],
            PARTS_2=n_parts[2],
            ELEMENTS=_ELEMENTS,
            num_warps=4,
        )
    return sums
