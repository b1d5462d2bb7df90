"""The kernels of `band`, forward and the gradient of q.

A *band* is a branch in which the keys that a query sees are contiguous. Key s ends at token
`offset + s * stride + length - 1`, and a query sees the keys that end at or before it and less than `window`
tokens before it (WINDOWED). For the compressed branch stride and length are those of its blocks and there is no
window; for the others both are 1. Only the tiles at the ends of a band need a mask. If queries select among
blocks of BLOCK keys, bit i of a query's word says whether it selected block i.

One launch serves all bands, each of which may be missing, its pointers None: `C` in a name is the compressed branch,
`S` the selected, `W` the sliding window. Tiles come by pointers, or, where they are DESCRIBED, all of them by tensor
descriptors, which give zeros beyond the last token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from nsa.attention.kernels.gates import store_gated
from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.packing import tile_of_slab


class Shape(NamedTuple):
    """The constants of a launch that all its bands share.

    Kernels give a constant a name of its own before using it in a shape, as in `tl.zeros`: Triton 3.6 compiles no attribute there.
    """

    H: int  # query heads
    GROUP: int  # query heads per KV head
    D: int  # head dim of q and k
    DP: int  # D rounded up to a power of two
    DV: int  # head dim of v
    DVP: int
    PACKED: bool
    DESCRIBED: bool
    ROWS: int  # queries of a tile
    COLUMNS: int  # keys of a tile
    HELD: bool  # whether the gradient of q keeps dO in registers


class Band(NamedTuple):
    """The constants of one band."""

    STRIDE: int
    LENGTH: int
    KEYS: int  # the row of `packed_borders` in units of its keys
    WINDOWED: bool
    BLOCK: int  # keys of a selection block; 0 if queries select all blocks


class Rows(NamedTuple):
    """The queries: B rows of T tokens after `past` others, or one row of packed sequences."""

    BORDERS: Any
    n_sequences: Any
    T: Any
    past: Any
    window: Any


class Keys(NamedTuple):
    """The keys and values of one band."""

    K: Any
    V: Any
    N: Any
    offset: Any


class Gated(NamedTuple):
    """The outputs of the other branches, if there are any, and the gated sum with them."""

    COMPRESSED: Any
    WINDOW: Any
    GATES: Any
    SUM: Any


@triton.jit
def wide(index):
    """A scalar as int64, since rows times strides exceed 2^31; under the interpreter it may be a Python int."""
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
def _borders(rows, keys, tile, BAND: tl.constexpr, SHAPE: tl.constexpr):
    """A tile's first token and the end of its sequence; the first key, the end of the keys, and their offset."""
    first, T, begin, N, offset = tile * SHAPE.ROWS, rows.T, tile * 0, keys.N, keys.offset
    if SHAPE.PACKED:
        starts = rows.BORDERS + BAND.KEYS * (rows.n_sequences + 1)
        first, start, T, begin, N = tile_of_slab(rows.BORDERS, starts, tile, rows.n_sequences, SHAPE.ROWS)
        offset = start - begin * BAND.STRIDE
    return first, T, begin, N, offset


@triton.jit
def _span(first, T, begin, N, offset, rows, BAND: tl.constexpr, SHAPE: tl.constexpr):
    """The keys [since, until) that each query of a tile sees; then four borders: between the second and the
    third all queries see all keys, between the others each its own."""
    STRIDE: tl.constexpr = BAND.STRIDE
    LENGTH: tl.constexpr = BAND.LENGTH
    past, window = rows.past, rows.window
    token = past + first + tl.arange(0, SHAPE.ROWS)
    until = keys_ended(token, N, STRIDE, LENGTH, offset)
    since = keys_ended(token - window, N, STRIDE, LENGTH, offset) if BAND.WINDOWED else until * 0
    oldest, newest = past + first, past + tl.minimum(first + SHAPE.ROWS, T) - 1
    end = tl.maximum(keys_ended(newest, N, STRIDE, LENGTH, offset), begin)
    seen_by_all = keys_ended(oldest, N, STRIDE, LENGTH, offset)
    inner = begin
    if BAND.WINDOWED:
        inner = tl.maximum(keys_ended(newest - window, N, STRIDE, LENGTH, offset), begin)
        begin = tl.maximum(keys_ended(oldest - window, N, STRIDE, LENGTH, offset), begin)
        inner = tl.minimum(begin + tl.cdiv(inner - begin, SHAPE.COLUMNS) * SHAPE.COLUMNS, end)
    outer = inner + tl.maximum(seen_by_all - inner, 0) // SHAPE.COLUMNS * SHAPE.COLUMNS
    return since, until, begin, inner, outer, end


@triton.jit
def _forward_keys(
    q, m, norm, acc, keys, b, kv, begin, end, since, until, scale_log2,
    MASKED: tl.constexpr, BAND: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Take the keys of [begin, end) into the running softmax; each query sees those of [since, until).

    If there is a BLOCK, `since` holds the words of bits that say which blocks each query selected.
    """
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    od, odv, oc = tl.arange(0, SHAPE.DP), tl.arange(0, SHAPE.DVP), tl.arange(0, SHAPE.COLUMNS)
    for first in range(begin, end, SHAPE.COLUMNS):
        key = first + oc
        if SHAPE.DESCRIBED:
            k = tl.trans(described(keys.K, b, first, kv * D, SHAPE.COLUMNS, SHAPE.DP))
            v = described(keys.V, b, first, kv * DV, SHAPE.COLUMNS, SHAPE.DVP)
            if MASKED and SHAPE.PACKED:  # the next sequence may hold NaN
                v = tl.where((key < keys.N)[:, None], v, 0.0)
        else:
            k_at = keys.K + wide(first) * (KV_HEADS * D) + oc[None, :] * (KV_HEADS * D) + od[:, None]
            v_at = keys.V + wide(first) * (KV_HEADS * DV) + oc[:, None] * (KV_HEADS * DV) + odv[None, :]
            if MASKED:
                k = tl.load(k_at, mask=(key < keys.N)[None, :] & (od < D)[:, None], other=0.0)
                v = tl.load(v_at, mask=(key < keys.N)[:, None] & (odv < DV)[None, :], other=0.0)
            else:
                k = tl.load(k_at) if D == SHAPE.DP else tl.load(k_at, mask=(od < D)[:, None], other=0.0)
                v = tl.load(v_at) if DV == SHAPE.DVP else tl.load(v_at, mask=(odv < DV)[None, :], other=0.0)
        s = tl.dot(q, k, input_precision="ieee")
        if BAND.BLOCK > 0:
            selected = ((since >> (first // BAND.BLOCK)) & 1) != 0
        if MASKED:
            last = until - first
            if BAND.BLOCK > 0:
                last = tl.where(selected, last, 0)
            seen = oc[None, :] < last[:, None]
            if BAND.WINDOWED:
                seen = seen & (oc[None, :] >= (since - first)[:, None])
            s = tl.where(seen, s, float("-inf"))
        # The scale is positive, so the largest score is the same before and after it.
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)
        subtracted = m_new
        if BAND.BLOCK > 0 and not MASKED:  # masked by row, which is cheaper than by score
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
    Q, keys, OUT, LSE, BITS, gated, rows, bh, tile, scale_log2, BAND: tl.constexpr, SHAPE: tl.constexpr
):
    """Attention of a tile of queries of one head to the keys of one band."""
    ROWS: tl.constexpr = SHAPE.ROWS
    DVP: tl.constexpr = SHAPE.DVP
    H: tl.constexpr = SHAPE.H
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    first, T, begin, N, offset = _borders(rows, keys, tile, BAND, SHAPE)
    b, h = bh // H, bh % H
    row = tl.arange(0, ROWS)
    live = first + row < T
    od, odv = tl.arange(0, SHAPE.DP), tl.arange(0, DVP)
    begin_row = b.to(tl.int64) * rows.T + first
    kv = h // SHAPE.GROUP
    K, V = keys.K, keys.V
    if SHAPE.DESCRIBED:
        q = described(Q, b, first, h * D, ROWS, SHAPE.DP)
    else:  # a packed row is the only one: b is 0
        q_at = Q + (begin_row * H + h) * D + row[:, None] * (H * D) + od[None, :]
        q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
        K += (b.to(tl.int64) * keys.N * KV_HEADS + kv) * D
        V += (b.to(tl.int64) * keys.N * KV_HEADS + kv) * DV
    since, until, begin, inner, outer, end = _span(first, T, begin, N, offset, rows, BAND, SHAPE)
    if BAND.BLOCK > 0:
        bits_at = (b * KV_HEADS + kv).to(tl.int64) * rows.T + first + row
        since = tl.load(BITS + bits_at, mask=live, other=0)

    own = Keys(K, V, N, offset)
    m = tl.full([ROWS], -1e30, tl.float32)  # finite, so that a score of -inf is a probability of 0
    norm = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    if BAND.WINDOWED:
        m, norm, acc = _forward_keys(
            q, m, norm, acc, own, b, kv, begin, inner, since, until, scale_log2, True, BAND, SHAPE
        )
    m, norm, acc = _forward_keys(
        q, m, norm, acc, own, b, kv, inner, outer, since, until, scale_log2, False, BAND, SHAPE
    )
    m, norm, acc = _forward_keys(
        q, m, norm, acc, own, b, kv, outer, end, since, until, scale_log2, True, BAND, SHAPE
    )

    norm = tl.where(norm > 0, norm, 1.0)  # a query that sees no key gets 0
    out = (acc / norm[:, None]).to(OUT.dtype.element_ty)
    out_at = (begin_row * H + h) * DV + row[:, None] * (H * DV) + odv[None, :]
    mask = live[:, None] & (odv < DV)[None, :]
    tl.store(OUT + out_at, out, mask=mask)
    tl.store(LSE + bh.to(tl.int64) * rows.T + first + row, m + tl.log2(norm), mask=live)
    if gated.SUM is not None:
        gates_at = gated.GATES + ((begin_row + row) * H + h) * 3
        store_gated(gated, out, gates_at, out_at, live, mask)


@Launcher
@triton.jit(do_not_specialize=["past", "offset", "NC", "NS", "NW", "n_sequences"])
def forward_kernel(
    Q, KC, VC, OUT_C, LSE_C, KS, VS, OUT_S, LSE_S, KW, VW, OUT_W, LSE_W, BORDERS, BITS, GATES, SUM,
    T, NC, NS, NW, past, offset, window, scale_log2, n_sequences,
    COMPRESSED: tl.constexpr, SELECTED: tl.constexpr, WINDOW: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """One program: a tile of queries of one head, and one of the bands that have keys here.

    If there is a SUM, the launch is that of the selected branch only, and the gated sum of all branches is stored there.
    """
    # The last queries of a sequence see the most keys: the longest programs start first.
    bh, tile = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    rows = Rows(BORDERS, n_sequences, T, past, window)
    gated = Gated(OUT_C, OUT_W, GATES, SUM)
    if SHAPE.PACKED:
        first, _, end, _, _ = tile_of_slab(BORDERS, BORDERS, tile, n_sequences, SHAPE.ROWS)
        if first >= end:
            return
    band = tl.program_id(2)
    if KS is not None:
        if band == 0:
            keys = Keys(KS, VS, NS, 0)
            _forward_band(Q, keys, OUT_S, LSE_S, BITS, gated, rows, bh, tile, scale_log2, SELECTED, SHAPE)
        band -= 1
    if KC is not None:
        if band == 0:
            keys = Keys(KC, VC, NC, 0)
            _forward_band(Q, keys, OUT_C, LSE_C, BITS, gated, rows, bh, tile, scale_log2, COMPRESSED, SHAPE)
        band -= 1
    if KW is not None:  # noqa: SIM102 (decided when it is compiled)
        if band == 0:
            keys = Keys(KW, VW, NW, offset)
            _forward_band(Q, keys, OUT_W, LSE_W, BITS, gated, rows, bh, tile, scale_log2, WINDOW, SHAPE)


@triton.jit
def _dq_keys(
    q, do, lse, dot, acc, keys, b, kv, begin, end, since, until, scale_log2,
    MASKED: tl.constexpr, BAND: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Add what the keys of [begin, end) give to dQ, not yet scaled; `since` and `until` as above."""
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    od, odv, oc = tl.arange(0, SHAPE.DP), tl.arange(0, SHAPE.DVP), tl.arange(0, SHAPE.COLUMNS)
    for first in range(begin, end, SHAPE.COLUMNS):
        key = first + oc
        if SHAPE.DESCRIBED:
            k = described(keys.K, b, first, kv * D, SHAPE.COLUMNS, SHAPE.DP)
            v = tl.trans(described(keys.V, b, first, kv * DV, SHAPE.COLUMNS, SHAPE.DVP))
            if MASKED and SHAPE.PACKED:
                k = tl.where((key < keys.N)[:, None], k, 0.0)
                v = tl.where((key < keys.N)[None, :], v, 0.0)
        else:
            k_at = keys.K + wide(first) * (KV_HEADS * D) + oc[:, None] * (KV_HEADS * D) + od[None, :]
            v_at = keys.V + wide(first) * (KV_HEADS * DV) + oc[None, :] * (KV_HEADS * DV) + odv[:, None]
            if MASKED:
                k = tl.load(k_at, mask=(key < keys.N)[:, None] & (od < D)[None, :], other=0.0)
                v = tl.load(v_at, mask=(key < keys.N)[None, :] & (odv < DV)[:, None], other=0.0)
            else:
                k = tl.load(k_at) if D == SHAPE.DP else tl.load(k_at, mask=(od < D)[None, :], other=0.0)
                v = tl.load(v_at) if DV == SHAPE.DVP else tl.load(v_at, mask=(odv < DV)[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        dp = tl.dot(do, v, input_precision="ieee")
        subtracted = lse
        if BAND.BLOCK > 0:
            selected = ((since >> (first // BAND.BLOCK)) & 1) != 0
            subtracted = tl.where(selected, lse, float("inf"))  # a probability of 0
        p = tl.exp2(s * scale_log2 - subtracted[:, None])
        if MASKED:
            seen = oc[None, :] < (until - first)[:, None]
            if BAND.WINDOWED:
                seen = seen & (oc[None, :] >= (since - first)[:, None])
            p = tl.where(seen, p, 0.0)
        ds = p * (dp - dot[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc, input_precision="ieee")
    return acc


@triton.jit
def _dq_band(
    q, do, acc, keys, STATS, BITS, rows, b, h, tile, scale_log2, slab, BAND: tl.constexpr, SHAPE: tl.constexpr
):
    """Add what one band gives to dQ, not yet scaled. STATS are those of its branch."""
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    first, T, begin, N, offset = _borders(rows, keys, tile, BAND, SHAPE)
    row, kv = tl.arange(0, SHAPE.ROWS), h // SHAPE.GROUP
    live = first + row < T
    K, V = keys.K, keys.V
    if not SHAPE.DESCRIBED:
        K += (b.to(tl.int64) * keys.N * KV_HEADS + kv) * SHAPE.D
        V += (b.to(tl.int64) * keys.N * KV_HEADS + kv) * SHAPE.DV
    STATS += (b * SHAPE.H + h).to(tl.int64) * rows.T + first
    lse = tl.load(STATS + row, mask=live, other=0.0)
    dot = tl.load(STATS + 3 * slab + row, mask=live, other=0.0)
    since, until, begin, inner, outer, end = _span(first, T, begin, N, offset, rows, BAND, SHAPE)
    if BAND.BLOCK > 0:
        bits_at = (b * KV_HEADS + kv).to(tl.int64) * rows.T + first + row
        since = tl.load(BITS + bits_at, mask=live, other=0)
    own = Keys(K, V, N, offset)
    if BAND.WINDOWED:
        acc = _dq_keys(
            q, do, lse, dot, acc, own, b, kv, begin, inner, since, until, scale_log2, True, BAND, SHAPE
        )
    acc = _dq_keys(
        q, do, lse, dot, acc, own, b, kv, inner, outer, since, until, scale_log2, False, BAND, SHAPE
    )
    return _dq_keys(q, do, lse, dot, acc, own, b, kv, outer, end, since, until, scale_log2, True, BAND, SHAPE)


@Launcher
@triton.jit(do_not_specialize=["past", "offset", "NC", "NS", "NW", "slab", "n_sequences"])
def dq_kernel(
    Q, KC, VC, KS, VS, KW, VW, DOUT, STATS, DQ, BORDERS, BITS, T, NC, NS, NW, past, offset, window, scale, scale_log2,
    slab, n_sequences,
    COMPRESSED: tl.constexpr, SELECTED: tl.constexpr, WINDOW: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """One program: the gradient of a tile of queries of one head, from all bands. `slab` is B * H * T."""
    ROWS: tl.constexpr = SHAPE.ROWS
    DP: tl.constexpr = SHAPE.DP
    H: tl.constexpr = SHAPE.H
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    b, h = tl.program_id(0) // H, tl.program_id(0) % H
    slab = slab.to(tl.int64)
    first, end = tile * ROWS, T
    if SHAPE.PACKED:
        first, _, end, _, _ = tile_of_slab(BORDERS, BORDERS, tile, n_sequences, ROWS)
        if first >= end:
            return
    row = tl.arange(0, ROWS)
    live = first + row < end
    od, odv = tl.arange(0, DP), tl.arange(0, SHAPE.DVP)
    begin_row = b.to(tl.int64) * T + first
    q_offset = (begin_row * H + h) * D + row[:, None] * (H * D) + od[None, :]
    q_mask = live[:, None] & (od < D)[None, :]
    if SHAPE.DESCRIBED:
        q = described(Q, b, first, h * D, ROWS, DP)
        do = described(DOUT, b, first, h * DV, ROWS, SHAPE.DVP)
        # No longer as it was loaded, dO stays in registers, and shared memory has room for a third stage.
        if SHAPE.HELD:
            do = tl.where(live[:, None], do, 0.0)
    else:
        q = tl.load(Q + q_offset, mask=q_mask, other=0.0)
        do_at = DOUT + (begin_row * H + h) * DV + row[:, None] * (H * DV) + odv[None, :]
        do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
    rows = Rows(BORDERS, n_sequences, T, past, window)
    acc = tl.zeros([ROWS, DP], tl.float32)
    if KC is not None:
        keys = Keys(KC, VC, NC, 0)
        acc = _dq_band(q, do, acc, keys, STATS, BITS, rows, b, h, tile, scale_log2, slab, COMPRESSED, SHAPE)
    if KS is not None:
        keys = Keys(KS, VS, NS, 0)
        stats = STATS + slab
        acc = _dq_band(q, do, acc, keys, stats, BITS, rows, b, h, tile, scale_log2, slab, SELECTED, SHAPE)
    if KW is not None:
        keys = Keys(KW, VW, NW, offset)
        stats = STATS + 2 * slab
        acc = _dq_band(q, do, acc, keys, stats, BITS, rows, b, h, tile, scale_log2, slab, WINDOW, SHAPE)
    tl.store(DQ + q_offset, (acc * scale).to(DQ.dtype.element_ty), mask=q_mask)
