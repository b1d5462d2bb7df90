"""The kernels of `bands`, forward and the gradient of q.

A *band* is a branch in which the keys that a query sees are contiguous. Key s ends at token
`offset + s * stride + length - 1`, and a query sees the keys that end at or before it and less than `window`
tokens before it (WINDOWED). For the compressed branch stride and length are those of its blocks and there is no
window; for the others both are 1. Only the tiles at the ends of a band need a mask. Where queries select among
blocks, of BLOCK keys, bit i of a query's word says whether it selected block i.

One launch serves all bands, each of which may be missing: `C` in a name is the compressed branch, `S` the
selected, `W` the sliding window. Tiles come by pointers, or, where they are DESCRIBED, all of them by tensor
descriptors, which give zeros beyond the last token.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.attention.kernels.gates import store_gated
from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.packing import tile_of_slab


@triton.jit
def wide(index):
    """A scalar as int64, as rows times strides pass 2^31; a Python int under the interpreter's `range`."""
    return index + tl.full([], 0, tl.int64)


@triton.jit
def keys_ended(token, N, STRIDE: tl.constexpr, LENGTH: tl.constexpr, offset):
    """The number of the N keys that end at or before `token`."""
    return tl.minimum(tl.maximum(token - LENGTH + 1 - offset + STRIDE, 0) // STRIDE, N)


@triton.jit
def described(X, b, first, column, ROWS: tl.constexpr, D: tl.constexpr):
    """ROWS tokens of one head, from `first` on, of a tensor [B, T, H * D] that X describes."""
    return tl.reshape(X.load([b, first, column]), (ROWS, D))


@triton.jit
def _borders(
    BORDERS, tile, T, N, offset, n_sequences,
    STRIDE: tl.constexpr, KEYS: tl.constexpr, PACKED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile's first token and the end of its sequence; the first key, the end of the keys, and their offset."""
    first, begin = tile * ROWS, tile * 0
    if PACKED:
        keys = BORDERS + KEYS * (n_sequences + 1)
        first, start, T, begin, N = tile_of_slab(BORDERS, keys, tile, n_sequences, ROWS)
        offset = start - begin * STRIDE
    return first, T, begin, N, offset


@triton.jit
def _span(
    first, T, begin, N, past, offset, window,
    STRIDE: tl.constexpr, LENGTH: tl.constexpr, WINDOWED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The keys [since, until) that each query of a tile sees; then four borders: between the second and the
    third all queries see all keys, between the others each its own."""
    token = past + first + tl.arange(0, ROWS)
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
    return since, until, begin, inner, outer, end


@triton.jit
def _forward_keys(
    q, m, norm, acc, K, V, b, kv, begin, end, since, until, N, scale_log2, key_stride, value_stride,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, COLUMNS: tl.constexpr,
    WINDOWED: tl.constexpr, DESCRIBED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take the keys of [begin, end) into the running softmax; each query sees those of [since, until).

    If there is a BLOCK, of so many keys, `since` are words instead that say which blocks a query selected.
    """
    od, odv, oc = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, COLUMNS)
    for first in range(begin, end, COLUMNS):
        key = first + oc
        if DESCRIBED:
            k = tl.trans(described(K, b, first, kv * D, COLUMNS, DP))
            v = described(V, b, first, kv * DV, COLUMNS, DVP)
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
        if BLOCK > 0:
            selected = ((since >> (first // BLOCK)) & 1) != 0
        if MASKED:
            last = until - first
            if BLOCK > 0:
                last = tl.where(selected, last, 0)
            seen = oc[None, :] < last[:, None]
            if WINDOWED:
                seen = seen & (oc[None, :] >= (since - first)[:, None])
            s = tl.where(seen, s, float("-inf"))
        # The scale is positive, so the largest score is the same before and after it.
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)
        subtracted = m_new
        if BLOCK > 0 and not MASKED:  # row by row, which is cheaper than score by score
            m_new = tl.where(selected, m_new, m)
            subtracted = tl.where(selected, m_new, float("inf"))
        p = tl.exp2(s * scale_log2 - subtracted[:, None])
        shrink = tl.exp2(m - m_new)
        norm = norm * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return m, norm, acc


@triton.jit
def _forward_band(
    Q, K, V, OUT, LSE, BORDERS, BITS, COMPRESSED, GATES, SUM, WINDOW, bh, tile, T, N, past, offset, window, scale_log2, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr, GATED: tl.constexpr, HAS_C: tl.constexpr, HAS_W: tl.constexpr,
    PACKED: tl.constexpr, DESCRIBED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Attention of a tile of queries of one head to the keys of one band."""
    row_length, all_keys = T, N
    first, T, begin, N, offset = _borders(
        BORDERS, tile, T, N, offset, n_sequences, STRIDE, KEYS, PACKED, ROWS
    )
    kv_heads: tl.constexpr = H // GROUP
    b, h = bh // H, bh % H
    row = tl.arange(0, ROWS)
    live = first + row < T
    od, odv = tl.arange(0, DP), tl.arange(0, DVP)
    begin_row = b.to(tl.int64) * row_length + first
    kv = h // GROUP
    if DESCRIBED:
        q = described(Q, b, first, h * D, ROWS, DP)
    else:  # a packed row is the only one: b is 0
        q_at = Q + (begin_row * H + h) * D + row[:, None] * (H * D) + od[None, :]
        q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
        K += (b.to(tl.int64) * all_keys * kv_heads + kv) * D
        V += (b.to(tl.int64) * all_keys * kv_heads + kv) * DV
    since, until, begin, inner, outer, end = _span(
        first, T, begin, N, past, offset, window, STRIDE, LENGTH, WINDOWED, ROWS, COLUMNS
    )
    if BLOCK > 0:
        bits_at = (b * kv_heads + kv).to(tl.int64) * row_length + first + row
        since = tl.load(BITS + bits_at, mask=live, other=0)

    m = tl.full([ROWS], -1e30, tl.float32)  # finite, so that a score of -inf is a probability of 0
    norm = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    if WINDOWED:
        m, norm, acc = _forward_keys(
            q, m, norm, acc, K, V, b, kv, begin, inner, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
            D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, True, BLOCK,
        )  # fmt: skip
    m, norm, acc = _forward_keys(
        q, m, norm, acc, K, V, b, kv, inner, outer, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
        D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, False, BLOCK,
    )  # fmt: skip
    m, norm, acc = _forward_keys(
        q, m, norm, acc, K, V, b, kv, outer, end, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
        D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, True, BLOCK,
    )  # fmt: skip

    norm = tl.where(norm > 0, norm, 1.0)  # a query that sees no key gets 0
    out = (acc / norm[:, None]).to(OUT.dtype.element_ty)
    out_at = (begin_row * H + h) * DV + row[:, None] * (H * DV) + odv[None, :]
    mask = live[:, None] & (odv < DV)[None, :]
    tl.store(OUT + out_at, out, mask=mask)
    tl.store(LSE + bh.to(tl.int64) * row_length + first + row, m + tl.log2(norm), mask=live)
    if GATED:
        gates_at = GATES + ((begin_row + row) * H + h) * 3
        store_gated(COMPRESSED, out, WINDOW, gates_at, SUM, out_at, live, mask, HAS_C, HAS_W)


@Launcher
@triton.jit(do_not_specialize=["past", "offset", "NC", "NS", "NW", "n_sequences"])
def forward_kernel(
    Q, KC, VC, OUT_C, LSE_C, KS, VS, OUT_S, LSE_S, KW, VW, OUT_W, LSE_W, BORDERS, BITS, GATES, SUM,
    T, NC, NS, NW, past, offset, window, scale_log2, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr,
    HAS_C: tl.constexpr, HAS_S: tl.constexpr, HAS_W: tl.constexpr, GATED: tl.constexpr, PACKED: tl.constexpr,
    DESCRIBED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program: a tile of queries of one head, and one of the bands that have keys here.

    GATED: the selected branch alone, whose output is added to those of the others that have one, by their gates.
    """
    # The last queries of a sequence see the most keys: longest programs first.
    bh, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    if PACKED:
        first, _, end, _, _ = tile_of_slab(BORDERS, BORDERS, tile, n_sequences, ROWS)
        if first >= end:
            return
    if HAS_S:  # noqa: SIM102 (decided when it is compiled)
        if tl.program_id(2) == 0:
            _forward_band(
                Q, KS, VS, OUT_S, LSE_S, BORDERS, BITS, OUT_C, GATES, SUM, OUT_W, bh, tile, T, NS, past, 0, window,
                scale_log2, n_sequences, H, GROUP, D, DP, DV, DVP, 1, 1, 0, False, BLOCK, GATED, HAS_C, HAS_W,
                PACKED, DESCRIBED, ROWS, COLUMNS,
            )  # fmt: skip
    if HAS_C and not GATED:  # noqa: SIM102
        if tl.program_id(2) == HAS_S:
            _forward_band(
                Q, KC, VC, OUT_C, LSE_C, BORDERS, BITS, OUT_C, GATES, SUM, OUT_W, bh, tile, T, NC, past, 0, window,
                scale_log2, n_sequences, H, GROUP, D, DP, DV, DVP, STRIDE, LENGTH, 1, False, 0, False, HAS_C, HAS_W,
                PACKED, DESCRIBED, ROWS, COLUMNS,
            )  # fmt: skip
    if HAS_W and not GATED:  # noqa: SIM102
        if tl.program_id(2) == HAS_S + HAS_C:
            _forward_band(
                Q, KW, VW, OUT_W, LSE_W, BORDERS, BITS, OUT_C, GATES, SUM, OUT_W, bh, tile, T, NW, past, offset, window,
                scale_log2, n_sequences, H, GROUP, D, DP, DV, DVP, 1, 1, 0, True, 0, False, HAS_C, HAS_W,
                PACKED, DESCRIBED, ROWS, COLUMNS,
            )  # fmt: skip


@triton.jit
def _dq_keys(
    q, do, lse, dot, acc, K, V, b, kv, begin, end, since, until, N, scale_log2, key_stride, value_stride,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, COLUMNS: tl.constexpr,
    WINDOWED: tl.constexpr, DESCRIBED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add what the keys of [begin, end) give to dQ, not yet scaled; `since`, `until` and BLOCK as above."""
    od, odv, oc = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, COLUMNS)
    for first in range(begin, end, COLUMNS):
        key = first + oc
        if DESCRIBED:
            k = described(K, b, first, kv * D, COLUMNS, DP)
            v = tl.trans(described(V, b, first, kv * DV, COLUMNS, DVP))
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
        subtracted = lse
        if BLOCK > 0:
            selected = ((since >> (first // BLOCK)) & 1) != 0
            subtracted = tl.where(selected, lse, float("inf"))  # a probability of 0
        p = tl.exp2(s * scale_log2 - subtracted[:, None])
        if MASKED:
            seen = oc[None, :] < (until - first)[:, None]
            if WINDOWED:
                seen = seen & (oc[None, :] >= (since - first)[:, None])
            p = tl.where(seen, p, 0.0)
        ds = p * (dp - dot[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc, input_precision="ieee")
    return acc


@triton.jit
def _dq_band(
    q, do, acc, K, V, STATS, BORDERS, BITS, b, h, tile, T, N, past, offset, window, scale_log2, slab, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr, PACKED: tl.constexpr, DESCRIBED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add what one band gives to dQ, not yet scaled. STATS are those of its branch."""
    row_length, all_keys = T, N
    first, T, begin, N, offset = _borders(
        BORDERS, tile, T, N, offset, n_sequences, STRIDE, KEYS, PACKED, ROWS
    )
    kv_heads: tl.constexpr = H // GROUP
    row, kv = tl.arange(0, ROWS), h // GROUP
    live = first + row < T
    if not DESCRIBED:
        K += (b.to(tl.int64) * all_keys * kv_heads + kv) * D
        V += (b.to(tl.int64) * all_keys * kv_heads + kv) * DV
    STATS += (b * H + h).to(tl.int64) * row_length + first
    lse = tl.load(STATS + row, mask=live, other=0.0)
    dot = tl.load(STATS + 3 * slab + row, mask=live, other=0.0)
    since, until, begin, inner, outer, end = _span(
        first, T, begin, N, past, offset, window, STRIDE, LENGTH, WINDOWED, ROWS, COLUMNS
    )
    if BLOCK > 0:
        bits_at = (b * kv_heads + kv).to(tl.int64) * row_length + first + row
        since = tl.load(BITS + bits_at, mask=live, other=0)
    if WINDOWED:
        acc = _dq_keys(
            q, do, lse, dot, acc, K, V, b, kv, begin, inner, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
            D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, True, BLOCK,
        )  # fmt: skip
    acc = _dq_keys(
        q, do, lse, dot, acc, K, V, b, kv, inner, outer, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
        D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, False, BLOCK,
    )  # fmt: skip
    return _dq_keys(
        q, do, lse, dot, acc, K, V, b, kv, outer, end, since, until, N, scale_log2, kv_heads * D, kv_heads * DV,
        D, DP, DV, DVP, COLUMNS, WINDOWED, DESCRIBED, True, BLOCK,
    )  # fmt: skip


@Launcher
@triton.jit(do_not_specialize=["past", "offset", "NC", "NS", "NW", "slab", "n_sequences"])
def dq_kernel(
    Q, KC, VC, KS, VS, KW, VW, DOUT, STATS, DQ, BORDERS, BITS, T, NC, NS, NW, past, offset, window, scale, scale_log2,
    slab, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr,
    HAS_C: tl.constexpr, HAS_S: tl.constexpr, HAS_W: tl.constexpr, PACKED: tl.constexpr,
    DESCRIBED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One program: the gradient of a tile of queries of one head, from all bands. `slab` is B * H * T."""
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    slab = slab.to(tl.int64)
    first, end = tile * ROWS, T
    if PACKED:
        first, _, end, _, _ = tile_of_slab(BORDERS, BORDERS, tile, n_sequences, ROWS)
        if first >= end:
            return
    row = tl.arange(0, ROWS)
    live = first + row < end
    od, odv = tl.arange(0, DP), tl.arange(0, DVP)
    begin_row = b.to(tl.int64) * T + first
    q_offset = (begin_row * H + h) * D + row[:, None] * (H * D) + od[None, :]
    q_mask = live[:, None] & (od < D)[None, :]
    if DESCRIBED:
        q = described(Q, b, first, h * D, ROWS, DP)
        do = described(DOUT, b, first, h * DV, ROWS, DVP)
    else:
        q = tl.load(Q + q_offset, mask=q_mask, other=0.0)
        do_at = DOUT + (begin_row * H + h) * DV + row[:, None] * (H * DV) + odv[None, :]
        do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
    acc = tl.zeros([ROWS, DP], tl.float32)
    if HAS_C:
        acc = _dq_band(
            q, do, acc, KC, VC, STATS, BORDERS, BITS, b, h, tile, T, NC, past, 0, window, scale_log2, slab,
            n_sequences, H, GROUP, D, DP, DV, DVP, STRIDE, LENGTH, 1, False, 0, PACKED, DESCRIBED, ROWS, COLUMNS,
        )  # fmt: skip
    if HAS_S:
        acc = _dq_band(
            q, do, acc, KS, VS, STATS + slab, BORDERS, BITS, b, h, tile, T, NS, past, 0, window, scale_log2, slab,
            n_sequences, H, GROUP, D, DP, DV, DVP, 1, 1, 0, False, BLOCK, PACKED, DESCRIBED, ROWS, COLUMNS,
        )  # fmt: skip
    if HAS_W:
        acc = _dq_band(
            q, do, acc, KW, VW, STATS + 2 * slab, BORDERS, BITS, b, h, tile, T, NW, past, offset, window, scale_log2,
            slab, n_sequences, H, GROUP, D, DP, DV, DVP, 1, 1, 0, True, 0, PACKED, DESCRIBED, ROWS, COLUMNS,
        )  # fmt: skip
    tl.store(DQ + q_offset, (acc * scale).to(DQ.dtype.element_ty), mask=q_mask)
