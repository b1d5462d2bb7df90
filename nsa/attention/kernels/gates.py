"""The gated sum of the branches (Eq. 5) and its backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.tiles import ceil_div, power_of_two


@Launcher
@triton.jit
def _gated_sum(
    A, B, C, GATES, OUT, n_rows,
    DV: tl.constexpr, DVP: tl.constexpr, HAS_A: tl.constexpr, HAS_B: tl.constexpr, HAS_C: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    odv = tl.arange(0, DVP)
    live = row < n_rows
    mask = live[:, None] & (odv < DV)[None, :]
    at = row[:, None] * DV + odv[None, :]
    out = tl.zeros([ROWS, DVP], tl.float32)
    if HAS_A:
        gate = tl.load(GATES + row * 3, mask=live, other=0.0).to(tl.float32)
        out += gate[:, None] * tl.load(A + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_B:
        gate = tl.load(GATES + row * 3 + 1, mask=live, other=0.0).to(tl.float32)
        out += gate[:, None] * tl.load(B + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_C:
        gate = tl.load(GATES + row * 3 + 2, mask=live, other=0.0).to(tl.float32)
        out += gate[:, None] * tl.load(C + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit
def store_gated(gated, selected, gates_at, at, live, mask):
    """Store the gated sum of the selected branch's output, in registers, and the others', `band_kernels.Gated`."""
    total = tl.zeros(selected.shape, tl.float32)
    if gated.COMPRESSED is not None:
        gate = tl.load(gates_at, mask=live, other=0.0).to(tl.float32)
        total += gate[:, None] * tl.load(gated.COMPRESSED + at, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gates_at + 1, mask=live, other=0.0).to(tl.float32)
    total += gate[:, None] * selected.to(tl.float32)
    if gated.WINDOW is not None:
        gate = tl.load(gates_at + 2, mask=live, other=0.0).to(tl.float32)
        total += gate[:, None] * tl.load(gated.WINDOW + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(gated.SUM + at, total.to(gated.SUM.dtype.element_ty), mask=mask)


@triton.jit
def _branch_backward(
    do, OUT, LSE, GATES, DGATES, LSE_OUT, DOT_OUT, at, mask, row, live, row_at,
    BRANCH: tl.constexpr, HAS: tl.constexpr,
):  # fmt: skip
    """The gradient of one gate; its gate goes into the lse, as p * gate = exp2(s - (lse - log2 gate))."""
    dot = tl.sum(do * 0.0, 1)
    if HAS:
        dot = tl.sum(do * tl.load(OUT + at, mask=mask, other=0.0).to(tl.float32), 1)
        gate = tl.load(GATES + row * 3 + BRANCH, mask=live, other=1.0).to(tl.float32)
        lse = tl.load(LSE + row_at, mask=live, other=0.0)
        tl.store(LSE_OUT + row_at, lse - tl.log2(gate), mask=live)
    else:
        tl.store(LSE_OUT + row_at, dot, mask=live)
    tl.store(DOT_OUT + row_at, dot, mask=live)
    tl.store(DGATES + row * 3 + BRANCH, dot.to(DGATES.dtype.element_ty), mask=live)


@Launcher
@triton.jit(do_not_specialize=["rows_all"])
def _gate_backward(
    DOUT, A, B, C, LSE_A, LSE_B, LSE_C, GATES, DGATES, LSE_OUT, T, rows_all,
    H: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, HAS_A: tl.constexpr, HAS_B: tl.constexpr,
    HAS_C: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    token = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    live = token < T
    row = (b.to(tl.int64) * T + token) * H + h
    row_at = tl.program_id(0).to(tl.int64) * T + token
    odv = tl.arange(0, DVP)
    mask = live[:, None] & (odv < DV)[None, :]
    at = row[:, None] * DV + odv[None, :]
    slab = rows_all.to(tl.int64)
    DOT_OUT = LSE_OUT + 3 * slab
    do = tl.load(DOUT + at, mask=mask, other=0.0).to(tl.float32)
    _branch_backward(do, A, LSE_A, GATES, DGATES, LSE_OUT, DOT_OUT, at, mask, row, live, row_at, 0, HAS_A)
    _branch_backward(
        do, B, LSE_B, GATES, DGATES, LSE_OUT + slab, DOT_OUT + slab, at, mask, row, live, row_at, 1, HAS_B
    )
    _branch_backward(
        do,
        C,
        LSE_C,
        GATES,
        DGATES,
        LSE_OUT + 2 * slab,
        DOT_OUT + 2 * slab,
        at,
        mask,
        row,
        live,
        row_at,
        2,
        HAS_C,
    )


def gated_sum(outs: Sequence[Tensor | None], gates: Tensor) -> Tensor:
    """Sum of gate * output; `outs` are [B, T, H, Dv] or None, in the order of the gates [B, T, H, 3]."""
    like = next(o for o in outs if o is not None)
    out = torch.empty_like(like)
    width = like.shape[3]
    n_rows = like.numel() // width
    rows = max(1, 4096 // power_of_two(width))
    _gated_sum[(ceil_div(n_rows, rows),)](
        *(like if o is None else o for o in outs), gates, out, n_rows, DV=width, DVP=power_of_two(width),
        HAS_A=outs[0] is not None, HAS_B=outs[1] is not None, HAS_C=outs[2] is not None, ROWS=rows, num_warps=4,
    )  # fmt: skip
    return out


def gate_backward(
    dout: Tensor, outs: Sequence[Tensor | None], lses: Sequence[Tensor | None], gates: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of the gates [B, T, H, 3], and for every branch lse - log2(gate) and dout · out.

    The last two are [2, 3, B, H, T], fp32, 0 for a branch that is not there. With them the backward of a branch
    takes `dout` as if it had no gate: with P' = gate * P, dV = P'^T dout and dS = P' (dout V^T - dout · out).
    """
    batch, n_queries, heads, width = dout.shape
    like_out = next(o for o in outs if o is not None)
    like_lse = next(x for x in lses if x is not None)
    dgates = torch.empty_like(gates)
    stats = like_lse.new_empty(2, 3, *like_lse.shape)
    rows = max(1, 4096 // power_of_two(width))
    _gate_backward[(batch * heads, ceil_div(n_queries, rows))](
        dout, *(like_out if o is None else o for o in outs), *(like_lse if x is None else x for x in lses),
        gates, dgates, stats, n_queries, like_lse.numel(), H=heads, DV=width,
        DVP=power_of_two(width), HAS_A=outs[0] is not None, HAS_B=outs[1] is not None,
        HAS_C=outs[2] is not None, ROWS=rows, num_warps=4,
    )  # fmt: skip
    return dgates, stats
