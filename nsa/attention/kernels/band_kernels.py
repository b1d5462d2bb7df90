"""The kernels of `band`.

Key s ends at token `offset + s * stride + length - 1`, and a query sees the keys that end at or before it and
less than `window` tokens before it (WINDOWED). For the compressed branch stride and length are those of its
blocks and there is no window; for the sliding one both are 1. So the keys that a query sees are contiguous,
and only the tiles at the ends of a band need a mask. Tiles come by pointers, or, where they are DESCRIBED,
all of them by tensor descriptors, which give zeros beyond the last token.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.packing import tile_of_slab


@triton.jit
def wide(index):
    """A scalar as int64, as rows times strides pass 2^31; a Python int under the interpreter's `range`."""
    return index + tl.full([], 0, tl.int64)


@triton.jit
def keys_ended(token, N, STRIDE: tl.constexpr, LENGTH: tl.constexpr, offset):
    """How many of the N keys end at or before `token`."""
    return tl.minimum(tl.maximum(token - LENGTH + 1 - offset + STRIDE, 0) // STRIDE, N)


@triton.jit
def _described(X, b, first, column, ROWS: tl.constexpr, D: tl.constexpr):
    """ROWS tokens of one head, from `first` on, of a tensor [B, T, H * D] that X describes."""
    return tl.reshape(X.load([b, first, column]), (ROWS, D))


@triton.jit
def _forward_keys(
    q, m, norm, acc, K, V, b, kv, begin, end, since, until, N, scale_log2, key_stride, value_stride,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, COLUMNS: tl.constexpr,
    WINDOWED: tl.constexpr, DESCRIBED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Take the keys of [begin, end) into the running softmax; each query sees those of [since, until)."""
    od, odv, oc = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, COLUMNS)
    for first in range(begin, end, COLUMNS):
        key = first + oc
        if DESCRIBED:
            k = tl.trans(_described(K, b, first, kv * D, COLUMNS, DP))
            v = _described(V, b, first, kv * DV, COLUMNS, DVP)
        else:
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
            seen = oc[None, :] < (until - first)[:, None]
            if WINDOWED:
                seen = seen & (oc[None, :] >= (since - first)[:, None])
            s = tl.where(seen, s, float("-inf"))
        # The scale is positive, so the largest score is the same before and after it.
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)
        p = tl.exp2(s * scale_log2 - m_new[:, None])
        shrink = tl.exp2(m - m_new)
        norm = norm * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return m, norm, acc


@Launcher
@triton.jit(do_not_specialize=["past", "offset", "N", "n_sequences"])
def forward_kernel(
    Q, K, V, OUT, LSE, TOKENS, KEYS, T, N, past, offset, window, scale_log2, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr,
    PACKED: tl.constexpr, DESCRIBED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # The last queries of a sequence see the most compressed keys: longest programs first.
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    kv_heads: tl.constexpr = H // GROUP
    first, begin, row_length = tile * ROWS, tile * 0, T
    if PACKED:  # from here on T and N are the ends of the tile's sequence
        first, start, T, begin, N = tile_of_slab(TOKENS, KEYS, tile, n_sequences, ROWS)
        offset = start - begin * STRIDE
        if first >= T:
            return
    row = tl.arange(0, ROWS)
    live = first + row < T
    od, odv = tl.arange(0, DP), tl.arange(0, DVP)
    begin_row = b.to(tl.int64) * row_length + first
    kv = h // GROUP
    if DESCRIBED:
        q = _described(Q, b, first, h * D, ROWS, DP)
    else:  # a packed row is the only one: b is 0
        q_at = Q + (begin_row * H + h) * D + row[:, None] * (H * D) + od[None, :]
        q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
        K += (b.to(tl.int64) * N * kv_heads + kv) * D
        V += (b.to(tl.int64) * N * kv_heads + kv) * DV

    token = past + first + row
    until = keys_ended(token, N, STRIDE, LENGTH, offset)
    since = keys_ended(token - window, N, STRIDE, LENGTH, offset) if WINDOWED else until * 0
    oldest, newest = past + first, past + tl.minimum(first + ROWS, T) - 1
    end = tl.maximum(keys_ended(newest, N, STRIDE, LENGTH, offset), begin)
    seen_by_all = keys_ended(oldest, N, STRIDE, LENGTH, offset)
    inner = begin
    if WINDOWED:
        inner = tl.maximum(keys_ended(newest - window, N, STRIDE, LENGTH, offset), begin)
        begin = tl.maximum(keys_ended(oldest - window, N, STRIDE, LENGTH, offset), begin)
        inner = tl.minimum(begin + tl.cdiv(inner - begin, COLUMNS) * COLUMNS, end)
    outer = inner + tl.maximum(seen_by_all - inner, 0) // COLUMNS * COLUMNS

    m = tl.full([ROWS], -1e30, tl.float32)  # finite, so that a score of -inf is a probability of 0
    norm = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    if WINDOWED:
        m, norm, acc = _forward_keys(
            q, m, norm, acc, K, V, b, kv, begin, inner, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
            D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, True,
        )  # fmt: skip
    m, norm, acc = _forward_keys(
        q, m, norm, acc, K, V, b, kv, inner, outer, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
        D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, False,
    )  # fmt: skip
    m, norm, acc = _forward_keys(
        q, m, norm, acc, K, V, b, kv, outer, end, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
        D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, True,
    )  # fmt: skip

    norm = tl.where(norm > 0, norm, 1.0)  # a query that sees no key gets 0
    out = acc / norm[:, None]
    out_at = OUT + (begin_row * H + h) * DV + row[:, None] * (H * DV) + odv[None, :]
    tl.store(out_at, out.to(OUT.dtype.element_ty), mask=live[:, None] & (odv < DV)[None, :])
    tl.store(LSE + tl.program_id(0).to(tl.int64) * row_length + first + row, m + tl.log2(norm), mask=live)


@triton.jit
def _dq_keys(
    q, do, lse, dot, acc, K, V, b, kv, begin, end, since, until, N, scale_log2, key_stride, value_stride,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, COLUMNS: tl.constexpr,
    WINDOWED: tl.constexpr, DESCRIBED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what the keys of [begin, end) give to dQ, not yet scaled; each query sees those of [since, until)."""
    od, odv, oc = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, COLUMNS)
    for first in range(begin, end, COLUMNS):
        key = first + oc
        if DESCRIBED:
            k = _described(K, b, first, kv * D, COLUMNS, DP)
            v = tl.trans(_described(V, b, first, kv * DV, COLUMNS, DVP))
        else:
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
            seen = oc[None, :] < (until - first)[:, None]
            if WINDOWED:
                seen = seen & (oc[None, :] >= (since - first)[:, None])
            p = tl.where(seen, p, 0.0)
        ds = p * (dp - dot[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc, input_precision="ieee")
    return acc


@Launcher
@triton.jit(do_not_specialize=["past", "offset", "N", "n_sequences"])
def dq_kernel(
    Q, K, V, DOUT, LSE, DOT, DQ, TOKENS, KEYS, T, N, past, offset, window, scale, scale_log2, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr,
    PACKED: tl.constexpr, DESCRIBED: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    kv_heads: tl.constexpr = H // GROUP
    first, begin, row_length = tile * ROWS, tile * 0, T
    if PACKED:  # from here on T and N are the ends of the tile's sequence
        first, start, T, begin, N = tile_of_slab(TOKENS, KEYS, tile, n_sequences, ROWS)
        offset = start - begin * STRIDE
        if first >= T:
            return
    row = tl.arange(0, ROWS)
    live = first + row < T
    od, odv = tl.arange(0, DP), tl.arange(0, DVP)
    begin_row = b.to(tl.int64) * row_length + first
    q_offset = (begin_row * H + h) * D + row[:, None] * (H * D) + od[None, :]
    q_mask = live[:, None] & (od < D)[None, :]
    kv = h // GROUP
    if DESCRIBED:
        q = _described(Q, b, first, h * D, ROWS, DP)
        do = _described(DOUT, b, first, h * DV, ROWS, DVP)
    else:  # a packed row is the only one: b is 0
        q = tl.load(Q + q_offset, mask=q_mask, other=0.0)
        do_at = DOUT + (begin_row * H + h) * DV + row[:, None] * (H * DV) + odv[None, :]
        do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
        K += (b.to(tl.int64) * N * kv_heads + kv) * D
        V += (b.to(tl.int64) * N * kv_heads + kv) * DV
    row_at = tl.program_id(0).to(tl.int64) * row_length + first + row
    lse = tl.load(LSE + row_at, mask=live, other=0.0)
    dot = tl.load(DOT + row_at, mask=live, other=0.0)

    token = past + first + row
    until = keys_ended(token, N, STRIDE, LENGTH, offset)
    since = keys_ended(token - window, N, STRIDE, LENGTH, offset) if WINDOWED else until * 0
    oldest, newest = past + first, past + tl.minimum(first + ROWS, T) - 1
    end = tl.maximum(keys_ended(newest, N, STRIDE, LENGTH, offset), begin)
    seen_by_all = keys_ended(oldest, N, STRIDE, LENGTH, offset)
    inner = begin
    if WINDOWED:
        inner = tl.maximum(keys_ended(newest - window, N, STRIDE, LENGTH, offset), begin)
        begin = tl.maximum(keys_ended(oldest - window, N, STRIDE, LENGTH, offset), begin)
        inner = tl.minimum(begin + tl.cdiv(inner - begin, COLUMNS) * COLUMNS, end)
    outer = inner + tl.maximum(seen_by_all - inner, 0) // COLUMNS * COLUMNS

    acc = tl.zeros([ROWS, DP], tl.float32)
    if WINDOWED:
        acc = _dq_keys(
            q, do, lse, dot, acc, K, V, b, kv, begin, inner, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
            D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, True,
        )  # fmt: skip
    acc = _dq_keys(
        q, do, lse, dot, acc, K, V, b, kv, inner, outer, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
        D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, False,
    )  # fmt: skip
    acc = _dq_keys(
        q, do, lse, dot, acc, K, V, b, kv, outer, end, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
        D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, True,
    )  # fmt: skip
    acc = acc * scale
    if ADD:
        acc += tl.load(DQ + q_offset, mask=q_mask, other=0.0).to(tl.float32)
    tl.store(DQ + q_offset, acc.to(DQ.dtype.element_ty), mask=q_mask)


@triton.jit
def _dkv_queries(
    k, v, dk, dv, Q, DOUT, LSE, DOT, b, first_head, heads, begin, end, first_sees, row_length, window, scale_log2,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, H: tl.constexpr,
    ROWS: tl.constexpr, WINDOWED: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Add what the queries of [begin, end) of some heads give to dK and dV; `first_sees` is the first that sees
    each key.

    One loop over heads and tiles: as loops in a loop, the kernel needs more registers than there are.
    """
    od, odv, row = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, ROWS)
    steps = tl.cdiv(tl.maximum(end - begin, 0), ROWS)
    for i in range(0, steps * heads):
        h = first_head + i // steps
        first = begin + i % steps * ROWS
        query = first + row
        live = query < end
        if DESCRIBED:
            q = _described(Q, b, first, h * D, ROWS, DP)
            do = _described(DOUT, b, first, h * DV, ROWS, DVP)
        else:
            head_row = (b.to(tl.int64) * row_length + first) * H + h
            q_at = Q + head_row * D + row[:, None] * (H * D) + od[None, :]
            do_at = DOUT + head_row * DV + row[:, None] * (H * DV) + odv[None, :]
            q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
            do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
        row_at = (b * H + h).to(tl.int64) * row_length + query
        lse = tl.load(LSE + row_at, mask=live, other=float("inf"))  # a probability of 0
        dot = tl.load(DOT + row_at, mask=live, other=0.0)
        s = tl.dot(k, tl.trans(q), input_precision="ieee")
        p = tl.exp2(s * scale_log2 - lse[None, :])
        # Every tile is masked: asking whether it must be takes more registers than there are.
        seen = row[None, :] >= (first_sees - first)[:, None]
        if WINDOWED:
            seen = seen & (row[None, :] < (first_sees - first + window)[:, None])
        p = tl.where(seen, p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        ds = p * (dp - dot[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@Launcher
@triton.jit(do_not_specialize=["past", "offset", "N", "n_sequences"])
def dkv_kernel(
    Q, K, V, DOUT, LSE, DOT, DK, DV_OUT, TOKENS, KEYS, T, N, past, offset, window, scale, scale_log2,
    queries_each, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr,
    PACKED: tl.constexpr, DESCRIBED: tl.constexpr, HEADS_EACH: tl.constexpr, HEAD_PARTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program: a tile of keys, some heads of their group and a range of the queries that see them."""
    kv_heads: tl.constexpr = H // GROUP
    part = tl.program_id(0) % HEAD_PARTS
    b, kv = tl.program_id(0) // HEAD_PARTS // kv_heads, tl.program_id(0) // HEAD_PARTS % kv_heads
    s0 = tl.program_id(1) * COLUMNS  # early keys are seen by most queries: longest programs first
    row_length, all_keys = T, N
    if PACKED:  # from here on T and N are the ends of the tile's sequence
        s0, key_start, N, start, T = tile_of_slab(KEYS, TOKENS, tl.program_id(1), n_sequences, COLUMNS)
        offset = start - key_start * STRIDE
        if s0 >= N:
            return
    oc, od, odv = tl.arange(0, COLUMNS), tl.arange(0, DP), tl.arange(0, DVP)
    key = s0 + oc
    key_row = (b.to(tl.int64) * N + s0) * kv_heads + kv
    k_offset = key_row * D + oc[:, None] * (kv_heads * D) + od[None, :]
    v_offset = key_row * DV + oc[:, None] * (kv_heads * DV) + odv[None, :]
    k_mask = (key < N)[:, None] & (od < D)[None, :]
    v_mask = (key < N)[:, None] & (odv < DV)[None, :]
    if DESCRIBED:
        k = _described(K, b, s0, kv * D, COLUMNS, DP)
        v = _described(V, b, s0, kv * DV, COLUMNS, DVP)
    else:
        k = tl.load(K + k_offset, mask=k_mask, other=0.0)
        v = tl.load(V + v_offset, mask=v_mask, other=0.0)
    dk = tl.zeros([COLUMNS, DP], tl.float32)
    dv = tl.zeros([COLUMNS, DVP], tl.float32)

    first_sees = offset + key * STRIDE + LENGTH - 1 - past  # the first query that sees each key
    first = offset + s0 * STRIDE + LENGTH - 1 - past
    begin = tl.maximum(tl.maximum(first, 0), tl.program_id(2) * queries_each)
    end = tl.minimum(T, (tl.program_id(2) + 1) * queries_each)
    if WINDOWED:
        end = tl.minimum(end, first + (tl.minimum(s0 + COLUMNS, N) - 1 - s0) * STRIDE + window)
    heads = tl.minimum(HEADS_EACH, GROUP - part * HEADS_EACH)
    dk, dv = _dkv_queries(
        k, v, dk, dv, Q, DOUT, LSE, DOT, b, kv * GROUP + part * HEADS_EACH, heads, begin, end, first_sees,
        row_length, window, scale_log2, D, DP, DV, DVP, H, ROWS, WINDOWED, DESCRIBED,
    )  # fmt: skip
    # Every part has a slab of its own, [B, N, Hkv, D]; their sum is taken afterwards, in one order.
    slab = (tl.program_id(2) * HEAD_PARTS + part).to(tl.int64) * (tl.num_programs(0) // HEAD_PARTS) * all_keys
    tl.store(DK + slab * D + k_offset, (dk * scale).to(DK.dtype.element_ty), mask=k_mask)
    tl.store(DV_OUT + slab * DV + v_offset, dv.to(DV_OUT.dtype.element_ty), mask=v_mask)
