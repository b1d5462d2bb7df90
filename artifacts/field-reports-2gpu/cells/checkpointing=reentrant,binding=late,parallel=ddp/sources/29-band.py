







from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.tiles import (
    FULL_GRID,
    Tile,
    band_dkv_tile,
    band_dq_tile,
    band_forward_tile,
    ceil_div,
    padded,
)

LOG2_E = 1.4426950408889634


class Band(NamedTuple):
    """Which keys a query sees; all in tokens."""

    stride: int
    length: int
    window: int  # 0: no window
    past: int  # tokens before the first query
    offset: int  # tokens before the first key


@triton.jit
def wide(index):
    """A scalar as int64, as rows times strides pass 2^31; a Python int under the interpreter's `range`."""
    return index + tl.full([], 0, tl.int64)


@triton.jit
def _keys_ended(token, N, STRIDE: tl.constexpr, LENGTH: tl.constexpr, offset):
    """How many of the N keys end at or before `token`."""
    return tl.minimum(tl.maximum(token - LENGTH + 1 - offset + STRIDE, 0) // STRIDE, N)


@triton.jit
def _forward_keys(
    q, m, norm, acc, K, V, begin, end, token, N, window, offset, scale_log2, key_stride, value_stride,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys of [begin, end) into the running softmax."""
    od, odv, oc = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, COLUMNS)
    for first in range(begin, end, COLUMNS):
        key = first + oc
        k_at = K + wide(first) * key_stride + oc[None, :] * key_stride + od[:, None]
        v_at = V + wide(first) * value_stride + oc[:, None] * value_stride + odv[None, :]
        if MASKED:
            k = tl.load(k_at, mask=(key < N)[None, :] & (od < D)[:, None], other=0.0)
            v = tl.load(v_at, mask=(key < N)[:, None] & (odv < DV)[None, :], other=0.0)
        else:
            k = tl.load(k_at) if D == DP else tl.load(k_at, mask=(od < D)[:, None], other=0.0)
            v = tl.load(v_at) if DV == DVP else tl.load(v_at, mask=(odv < DV)[None, :], other=0.0)
        s = tl.dot(q, k, input_precision="ieee")
        if MASKED:
            age = token[:, None] - (offset + key * STRIDE + LENGTH - 1)[None, :]
            seen = (age >= 0) & (key < N)[None, :]
            if WINDOWED:
                seen = seen & (age < window)
            s = tl.where(seen, s, float("-inf"))
        # The scale is positive, so the largest score is the same before and after it.
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)
        p = tl.exp2(s * scale_log2 - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        norm = norm * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return m, norm, acc


@triton.jit(do_not_specialize=["past", "offset", "N"])
def _forward(
    Q, K, V, OUT, LSE, T, N, past, offset, window, scale_log2,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # The last queries of a sequence see the most compressed keys: longest programs first.
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    kv_heads: tl.constexpr = H // GROUP
    row = tl.arange(0, ROWS)
    live = first + row < T
    od, odv = tl.arange(0, DP), tl.arange(0, DVP)
    begin_row = b.to(tl.int64) * T + first
    q_at = Q + (begin_row * H + h) * D + row[:, None] * (H * D) + od[None, :]
    q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
    K += (b.to(tl.int64) * N * kv_heads + h // GROUP) * D
    V += (b.to(tl.int64) * N * kv_heads + h // GROUP) * DV

    token = past + first + row
    oldest, newest = past + first, past + tl.minimum(first + ROWS, T) - 1
    end = _keys_ended(newest, N, STRIDE, LENGTH, offset)
    seen_by_all = _keys_ended(oldest, N, STRIDE, LENGTH, offset)
    begin = end * 0
    inner = begin
    if WINDOWED:
        begin = _keys_ended(oldest - window, N, STRIDE, LENGTH, offset)
        inner = _keys_ended(newest - window, N, STRIDE, LENGTH, offset)
        inner = tl.minimum(begin + tl.cdiv(inner - begin, COLUMNS) * COLUMNS, end)
    outer = inner + tl.maximum(seen_by_all - inner, 0) // COLUMNS * COLUMNS

    m = tl.full([ROWS], -1e30, tl.float32)  # finite, so that a score of -inf is a probability of 0
    norm = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    if WINDOWED:
        m, norm, acc = _forward_keys(
            q, m, norm, acc, K, V, begin, inner, token, N, window, offset, scale_log2, kv_heads * D,
            kv_heads * DV, D, DP, DV, DVP, COLUMNS, STRIDE, LENGTH, WINDOWED, True,
        )  # fmt: skip
    m, norm, acc = _forward_keys(
        q, m, norm, acc, K, V, inner, outer, token, N, window, offset, scale_log2, kv_heads * D,
        kv_heads * DV, D, DP, DV, DVP, COLUMNS, STRIDE, LENGTH, WINDOWED, False,
    )  # fmt: skip
    m, norm, acc = _forward_keys(
        q, m, norm, acc, K, V, outer, end, token, N, window, offset, scale_log2, kv_heads * D,
        kv_heads * DV, D, DP, DV, DVP, COLUMNS, STRIDE, LENGTH, WINDOWED, True,
    )  # fmt: skip

    norm = tl.where(norm > 0, norm, 1.0)  # a query that sees no key gets 0
    out = acc / norm[:, None]
    out_at = OUT + (begin_row * H + h) * DV + row[:, None] * (H * DV) + odv[None, :]
    tl.store(out_at, out.to(OUT.dtype.element_ty), mask=live[:, None] & (odv < DV)[None, :])
    tl.store(LSE + tl.program_id(0).to(tl.int64) * T + first + row, m + tl.log2(norm), mask=live)


@triton.jit
def _dq_keys(
    q, do, lse, dot, acc, K, V, begin, end, token, N, window, offset, scale_log2, key_stride, value_stride,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, COLUMNS: tl.constexpr,
    STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the keys of [begin, end) give to dQ, not yet scaled."""
    od, odv, oc = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, COLUMNS)
    for first in range(begin, end, COLUMNS):
        key = first + oc
        k_at = K + wide(first) * key_stride + oc[:, None] * key_stride + od[None, :]
        v_at = V + wide(first) * value_stride + oc[None, :] * value_stride + odv[:, None]
        if MASKED:
            k = tl.load(k_at, mask=(key < N)[:, None] & (od < D)[None, :], other=0.0)
            v = tl.load(v_at, mask=(key < N)[None, :] & (odv < DV)[:, None], other=0.0)
        else:
            k = tl.load(k_at) if D == DP else tl.load(k_at, mask=(od < D)[None, :], other=0.0)
            v = tl.load(v_at) if DV == DVP else tl.load(v_at, mask=(odv < DV)[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        dp = tl.dot(do, v, input_precision="ieee")
        p = tl.exp2(s * scale_log2 - lse[:, None])
        if MASKED:
            age = token[:, None] - (offset + key * STRIDE + LENGTH - 1)[None, :]
            seen = (age >= 0) & (key < N)[None, :]
            if WINDOWED:
                seen = seen & (age < window)
            p = tl.where(seen, p, 0.0)
        ds = p * (dp - dot[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["past", "offset", "N"])
def _dq(
    Q, K, V, DOUT, LSE, DOT, DQ, T, N, past, offset, window, scale, scale_log2,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    kv_heads: tl.constexpr = H // GROUP
    row = tl.arange(0, ROWS)
    live = first + row < T
    od, odv = tl.arange(0, DP), tl.arange(0, DVP)
    begin_row = b.to(tl.int64) * T + first
    q_offset = (begin_row * H + h) * D + row[:, None] * (H * D) + od[None, :]
    q_mask = live[:, None] & (od < D)[None, :]
    q = tl.load(Q + q_offset, mask=q_mask, other=0.0)
    do_at = DOUT + (begin_row * H + h) * DV + row[:, None] * (H * DV) + odv[None, :]
    do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
    row_at = tl.program_id(0).to(tl.int64) * T + first + row
    lse = tl.load(LSE + row_at, mask=live, other=0.0)
    dot = tl.load(DOT + row_at, mask=live, other=0.0)
    K += (b.to(tl.int64) * N * kv_heads + h // GROUP) * D
    V += (b.to(tl.int64) * N * kv_heads + h // GROUP) * DV

    token = past + first + row
    oldest, newest = past + first, past + tl.minimum(first + ROWS, T) - 1
    end = _keys_ended(newest, N, STRIDE, LENGTH, offset)
    seen_by_all = _keys_ended(oldest, N, STRIDE, LENGTH, offset)
    begin = end * 0
    inner = begin
    if WINDOWED:
        begin = _keys_ended(oldest - window, N, STRIDE, LENGTH, offset)
        inner = _keys_ended(newest - window, N, STRIDE, LENGTH, offset)
        inner = tl.minimum(begin + tl.cdiv(inner - begin, COLUMNS) * COLUMNS, end)
    outer = inner + tl.maximum(seen_by_all - inner, 0) // COLUMNS * COLUMNS

    acc = tl.zeros([ROWS, DP], tl.float32)
    if WINDOWED:
        acc = _dq_keys(
            q, do, lse, dot, acc, K, V, begin, inner, token, N, window, offset, scale_log2, kv_heads * D,
            kv_heads * DV, D, DP, DV, DVP, COLUMNS, STRIDE, LENGTH, WINDOWED, True,
        )  # fmt: skip
    acc = _dq_keys(
        q, do, lse, dot, acc, K, V, inner, outer, token, N, window, offset, scale_log2, kv_heads * D,
        kv_heads * DV, D, DP, DV, DVP, COLUMNS, STRIDE, LENGTH, WINDOWED, False,
    )  # fmt: skip
    acc = _dq_keys(
        q, do, lse, dot, acc, K, V, outer, end, token, N, window, offset, scale_log2, kv_heads * D,
        kv_heads * DV, D, DP, DV, DVP, COLUMNS, STRIDE, LENGTH, WINDOWED, True,
    )  # fmt: skip
    acc = acc * scale
    if ADD:
        acc += tl.load(DQ + q_offset, mask=q_mask, other=0.0).to(tl.float32)
    tl.store(DQ + q_offset, acc.to(DQ.dtype.element_ty), mask=q_mask)


@triton.jit
def _dkv_queries(
    k, v, dk, dv, Q, DOUT, LSE, DOT, begin, end, last, key, T, past, window, offset, scale_log2,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, H: tl.constexpr,
    ROWS: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the queries of [begin, end), which may end behind `last`, give to dK and dV of `key`."""
    od, odv, row = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, ROWS)
    for first in range(begin, end, ROWS):
        query = first + row
        q_at = Q + wide(first) * (H * D) + row[:, None] * (H * D) + od[None, :]
        do_at = DOUT + wide(first) * (H * DV) + row[:, None] * (H * DV) + odv[None, :]
        if MASKED:
            live = query < last
            q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
            do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
            lse = tl.load(LSE + query, mask=live, other=0.0)
            dot = tl.load(DOT + query, mask=live, other=0.0)
        else:
            q = tl.load(q_at) if D == DP else tl.load(q_at, mask=(od < D)[None, :], other=0.0)
            do = tl.load(do_at) if DV == DVP else tl.load(do_at, mask=(odv < DV)[None, :], other=0.0)
            lse = tl.load(LSE + query)
            dot = tl.load(DOT + query)
        s = tl.dot(k, tl.trans(q), input_precision="ieee")
        p = tl.exp2(s * scale_log2 - lse[None, :])
        if MASKED:
            age = (past + query)[None, :] - (offset + key * STRIDE + LENGTH - 1)[:, None]
            seen = (age >= 0) & live[None, :]
            if WINDOWED:
                seen = seen & (age < window)
            p = tl.where(seen, p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        ds = p * (dp - dot[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=["past", "offset", "N"])
def _dkv(
    Q, K, V, DOUT, LSE, DOT, DK, DV_OUT, T, N, past, offset, window, scale, scale_log2, queries_each,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr,
    HEADS_EACH: tl.constexpr, HEAD_PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program: a tile of keys, some heads of their group and a range of the queries that see them."""
    kv_heads: tl.constexpr = H // GROUP
    part = tl.program_id(0) % HEAD_PARTS
    b, kv = tl.program_id(0) // HEAD_PARTS // kv_heads, tl.program_id(0) // HEAD_PARTS % kv_heads
    s0 = tl.program_id(1) * COLUMNS  # early keys are seen by most queries: longest programs first
    oc, od, odv = tl.arange(0, COLUMNS), tl.arange(0, DP), tl.arange(0, DVP)
    key = s0 + oc
    key_row = (b.to(tl.int64) * N + s0) * kv_heads + kv
    k_offset = key_row * D + oc[:, None] * (kv_heads * D) + od[None, :]
    v_offset = key_row * DV + oc[:, None] * (kv_heads * DV) + odv[None, :]
    k_mask = (key < N)[:, None] & (od < D)[None, :]
    v_mask = (key < N)[:, None] & (odv < DV)[None, :]
    k = tl.load(K + k_offset, mask=k_mask, other=0.0)
    v = tl.load(V + v_offset, mask=v_mask, other=0.0)
    dk = tl.zeros([COLUMNS, DP], tl.float32)
    dv = tl.zeros([COLUMNS, DVP], tl.float32)

    first_end = offset + s0 * STRIDE + LENGTH - 1 - past  # the first query that sees the first key
    last_end = first_end + (tl.minimum(s0 + COLUMNS, N) - 1 - s0) * STRIDE
    begin = tl.maximum(tl.maximum(first_end, 0), tl.program_id(2) * queries_each)
    end = tl.minimum(T, (tl.program_id(2) + 1) * queries_each)
    plain_end = end
    if WINDOWED:
        plain_end = tl.minimum(end, first_end + window)
        end = tl.minimum(end, last_end + window)
    inner = tl.minimum(begin + tl.cdiv(tl.maximum(last_end - begin, 0), ROWS) * ROWS, end)
    outer = inner + tl.maximum(plain_end - inner, 0) // ROWS * ROWS
    for g in range(part * HEADS_EACH, tl.minimum((part + 1) * HEADS_EACH, GROUP)):
        h = kv * GROUP + g
        q_head = Q + (b.to(tl.int64) * T * H + h) * D
        do_head = DOUT + (b.to(tl.int64) * T * H + h) * DV
        row_at = (b * H + h).to(tl.int64) * T
        dk, dv = _dkv_queries(
            k, v, dk, dv, q_head, do_head, LSE + row_at, DOT + row_at, begin, inner, end, key, T, past,
            window, offset, scale_log2, D, DP, DV, DVP, H, ROWS, STRIDE, LENGTH, WINDOWED, True,
        )  # fmt: skip
        dk, dv = _dkv_queries(
            k, v, dk, dv, q_head, do_head, LSE + row_at, DOT + row_at, inner, outer, end, key, T, past,
            window, offset, scale_log2, D, DP, DV, DVP, H, ROWS, STRIDE, LENGTH, WINDOWED, False,
        )  # fmt: skip
        dk, dv = _dkv_queries(
            k, v, dk, dv, q_head, do_head, LSE + row_at, DOT + row_at, outer, end, end, key, T, past,
            window, offset, scale_log2, D, DP, DV, DVP, H, ROWS, STRIDE, LENGTH, WINDOWED, True,
        )  # fmt: skip
    # Every part has a slab of its own, [B, N, Hkv, D]; their sum is taken afterwards, in one order.
    slab = (tl.program_id(2) * HEAD_PARTS + part).to(tl.int64) * (tl.num_programs(0) // HEAD_PARTS) * N
    tl.store(DK + slab * D + k_offset, (dk * scale).to(DK.dtype.element_ty), mask=k_mask)
    tl.store(DV_OUT + slab * DV + v_offset, dv.to(DV_OUT.dtype.element_ty), mask=v_mask)


def band_forward(
    q: Tensor, k: Tensor, v: Tensor, band: Band, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """Attend from q [B, T, H, Dqk] to k [B, N, Hkv, Dqk] and v [B, N, Hkv, Dv], all contiguous.

    Returns the output [B, T, H, Dv] and lse [B, H, T], fp32, in base 2. A query that sees no key gets 0.
    """
    batch, n_queries, heads, dim = q.shape
    n_keys, v_dim = k.shape[1], v.shape[3]
    tile = tile or band_forward_tile(max(padded(dim), padded(v_dim)), q.dtype)
    out = q.new_empty(batch, n_queries, heads, v_dim)
    lse = q.new_empty(batch, heads, n_queries, dtype=torch.float32)
    grid = (batch * heads, ceil_div(n_queries, tile.rows))
    _forward[grid](
        q, k, v, out, lse, n_queries, n_keys, band.past, band.offset, band.window, dim**-0.5 * LOG2_E,
        **_constants(q, k, v, band), ROWS=tile.rows, COLUMNS=tile.columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, lse


def band_dq(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, lse: Tensor, dot: Tensor, dq: Tensor, band: Band,
    *, add: bool, tile: Tile | None = None,
) -> None:  # fmt: skip
    """Write the gradient of q into `dq`, or `add` it to what is there.

    `lse` and `dot` [B, H, T] are those of `gates.gate_backward`: with the gate in them, `dout` is the gradient
    of the gated sum.
    """
    batch, n_queries, heads, dim = q.shape
    tile = tile or band_dq_tile(max(padded(dim), padded(v.shape[3])), q.dtype)
    grid = (batch * heads, ceil_div(n_queries, tile.rows))
    _dq[grid](
        q, k, v, dout, lse, dot, dq, n_queries, k.shape[1], band.past, band.offset, band.window,
        dim**-0.5, dim**-0.5 * LOG2_E,
        **_constants(q, k, v, band), ADD=add, ROWS=tile.rows, COLUMNS=tile.columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def band_dkv(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, lse: Tensor, dot: Tensor, band: Band,
    tile: Tile | None = None, parts: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of k and v; `lse` and `dot` as in `band_dq`.

    `parts` splits the heads of a group and the queries, so that few keys still fill the GPU.
    """
    batch, n_queries, heads, dim = q.shape
    n_keys, kv_heads, v_dim = k.shape[1], k.shape[2], v.shape[3]
    if n_keys == 0:
        return torch.empty_like(k), torch.empty_like(v)
    tile = tile or band_dkv_tile(max(padded(dim), padded(v_dim)), q.dtype)
    n_tiles = ceil_div(n_keys, tile.columns)
    group = heads // kv_heads
    head_parts, query_parts = parts or _parts(batch * kv_heads * n_tiles, group, n_queries, band)
    heads_each = ceil_div(group, head_parts)
    head_parts = ceil_div(group, heads_each)
    n_parts = head_parts * query_parts
    dtype = torch.float32 if n_parts > 1 else k.dtype
    dk = k.new_empty(n_parts, *k.shape, dtype=dtype)
    dv = v.new_empty(n_parts, *v.shape, dtype=dtype)
    grid = (batch * kv_heads * head_parts, n_tiles, query_parts)
    _dkv[grid](
        q, k, v, dout, lse, dot, dk, dv, n_queries, n_keys, band.past, band.offset, band.window,
        dim**-0.5, dim**-0.5 * LOG2_E, ceil_div(n_queries, query_parts),
        **_constants(q, k, v, band), HEADS_EACH=heads_each, HEAD_PARTS=head_parts,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if n_parts == 1:
        return dk[0], dv[0]
    return dk.sum(0).to(k.dtype), dv.sum(0).to(v.dtype)


def _parts(programs: int, group: int, n_queries: int, band: Band) -> tuple[int, int]:
    """Into how many parts to split heads and queries.

    A windowed key is seen by few queries, so it is never split over them, and it has so many keys that slabs
    for every head would take gigabytes.
    """
    wanted = ceil_div(FULL_GRID, programs)
    if band.window:
        return min(group, wanted), 1
    head_parts = min(group, 4 * wanted)  # the programs of early keys are the longest: shorter ones balance
    return head_parts, max(1, min(ceil_div(2 * wanted, head_parts), n_queries // 1024))


def _constants(q: Tensor, k: Tensor, v: Tensor, band: Band) -> dict[str, int | bool]:
    return {
        "H": q.shape[2], "GROUP": q.shape[2] // k.shape[2], "D": q.shape[3], "DP": padded(q.shape[3]),
        "DV": v.shape[3], "DVP": padded(v.shape[3]), "STRIDE": band.stride, "LENGTH": band.length,
        "WINDOWED": band.window > 0,
    }  # fmt: skip
