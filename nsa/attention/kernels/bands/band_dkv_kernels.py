"""The kernel of `band` for the gradients of keys and values; names and bands as in `band_kernels`."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from nsa.attention.kernels.bands.band_kernels import Keys, Rows, described
from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.packing import tile_of_slab


class Queries(NamedTuple):
    """Inputs of the gradients of keys, from the queries; the statistics are those of the band's branch."""

    Q: Any
    DOUT: Any
    STATS: Any
    slab: Any
    BITS: Any


class Share(NamedTuple):
    """The division of a band's work among programs: tiles of keys, parts of the heads of a group and of the queries."""

    lists: Any  # B * Hkv
    tiles: Any
    head_parts: Any
    heads_each: Any
    queries_each: Any


@triton.jit
def _dkv_queries(
    k, v, dk, dv, queries, b, kv, part, heads_each, begin, end, last, first_sees, block, row_length, window, scale_log2,
    BAND: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the queries [begin, end) of some heads to dK and dV; `first_sees` is the first query that
    sees each key. If there is a BLOCK, only queries that selected `block` see its keys, by its bit in the KV head's BITS.

    The loop begins with the last queries: programs that start together then read the same ones, from L2, however many
    queries see their keys. Queries from `last` on are not read. It is one loop over heads and tiles, as nested loops need
    more registers than there are.
    """
    H: tl.constexpr = SHAPE.H
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    od, odv, row = tl.arange(0, SHAPE.DP), tl.arange(0, SHAPE.DVP), tl.arange(0, SHAPE.ROWS)
    steps = tl.cdiv(tl.maximum(end - begin, 0), SHAPE.ROWS)
    heads = tl.minimum(heads_each, SHAPE.GROUP - part * heads_each)
    h, step = kv * SHAPE.GROUP + part * heads_each, steps * 0
    for _ in range(0, steps * heads):
        first = begin + (steps - 1 - step) * SHAPE.ROWS
        query = first + row
        live = query < last
        if SHAPE.DESCRIBED:
            q = described(queries.Q, b, first, h * D, SHAPE.ROWS, SHAPE.DP)
            do = described(queries.DOUT, b, first, h * DV, SHAPE.ROWS, SHAPE.DVP)
        else:
            head_row = (b.to(tl.int64) * row_length + first) * H + h
            q_at = queries.Q + head_row * D + row[:, None] * (H * D) + od[None, :]
            do_at = queries.DOUT + head_row * DV + row[:, None] * (H * DV) + odv[None, :]
            q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
            do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
        stats_at = queries.STATS + ((b * H + h).to(tl.int64) * row_length + query)
        lse = tl.load(stats_at, mask=live, other=0.0)  # dO is 0 there, so the probability does not matter
        dot = tl.load(stats_at + 3 * queries.slab, mask=live, other=0.0)
        if BAND.BLOCK > 0:
            bits = tl.load(queries.BITS + query, mask=live, other=0)
            lse = tl.where(((bits >> block) & 1) != 0, lse, float("inf"))
        s = tl.dot(k, tl.trans(q), input_precision="ieee")
        p = tl.exp2(s * scale_log2 - lse[None, :])
        # Every tile is masked: a branch for those that need no mask would spill registers.
        seen = row[None, :] >= (first_sees - first)[:, None]
        if BAND.WINDOWED:
            seen = seen & (row[None, :] < (first_sees - first + window)[:, None])
        p = tl.where(seen, p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        ds = p * (dp - dot[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
        step += 1
        h += tl.where(step == steps, 1, 0)
        step = tl.where(step == steps, 0, step)
    return dk, dv


@triton.jit
def _dkv_band(
    queries, keys, DK, DV_OUT, rows, number, share, scale, scale_log2,
    BAND: tl.constexpr, SHAPE: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Program `number` of a band: a tile of keys, some heads of their group and a range of the queries that see them.

    Every part of the heads and queries writes a slab of its own, [B, N, Hkv, D]; slabs are summed afterwards, in a
    fixed order.
    """
    DP: tl.constexpr = SHAPE.DP
    DVP: tl.constexpr = SHAPE.DVP
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    STRIDE: tl.constexpr = BAND.STRIDE
    COLUMNS: tl.constexpr = SHAPE.COLUMNS
    # Early keys are seen by the most queries: the longest programs start first, TOGETHER tiles at a time, which read the same queries.
    within, number = number % TOGETHER, number // TOGETHER
    part, number = number % share.head_parts, number // share.head_parts
    bh, number = number % share.lists, number // share.lists
    b, kv = bh // KV_HEADS, bh % KV_HEADS
    groups = tl.cdiv(share.tiles, TOGETHER)
    # Programs beyond the last tile have no queries and no keys.
    tile, query_part = number % groups * TOGETHER + within, number // groups
    s0, T, N, offset = tile * COLUMNS, rows.T, keys.N, keys.offset
    if SHAPE.PACKED:  # from here on T and N are the ends of the tile's sequence
        starts = rows.BORDERS + BAND.KEYS * (rows.n_sequences + 1)
        s0, key_start, N, start, T = tile_of_slab(starts, rows.BORDERS, tile, rows.n_sequences, COLUMNS)
        offset = start - key_start * STRIDE
    oc, od, odv = tl.arange(0, COLUMNS), tl.arange(0, DP), tl.arange(0, DVP)
    key = s0 + oc
    key_row = (b.to(tl.int64) * keys.N + s0) * KV_HEADS + kv
    # Offsets within a tile have 32 bits: 64 would take twice the registers throughout the loop.
    k_within = oc[:, None] * (KV_HEADS * D) + od[None, :]
    v_within = oc[:, None] * (KV_HEADS * DV) + odv[None, :]
    k_mask = (key < N)[:, None] & (od < D)[None, :]
    v_mask = (key < N)[:, None] & (odv < DV)[None, :]
    if SHAPE.DESCRIBED:
        k = described(keys.K, b, s0, kv * D, COLUMNS, DP)
        v = described(keys.V, b, s0, kv * DV, COLUMNS, DVP)
    else:
        k = tl.load(keys.K + key_row * D + k_within, mask=k_mask, other=0.0)
        v = tl.load(keys.V + key_row * DV + v_within, mask=v_mask, other=0.0)
    dk = tl.zeros([COLUMNS, DP], tl.float32)
    dv = tl.zeros([COLUMNS, DVP], tl.float32)

    # The first query that sees each key, and that sees any.
    first_sees = offset + key * STRIDE + BAND.LENGTH - 1 - rows.past
    first = offset + s0 * STRIDE + BAND.LENGTH - 1 - rows.past
    begin = tl.maximum(tl.maximum(first, 0), query_part * share.queries_each)
    end = tl.minimum(T, (query_part + 1) * share.queries_each)
    if BAND.WINDOWED:
        end = tl.minimum(end, first + (tl.minimum(s0 + COLUMNS, N) - 1 - s0) * STRIDE + rows.window)
    last = T
    if SHAPE.PACKED:  # begins with the first query that sees a key: earlier ones may be of another sequence
        end = tl.where(s0 < N, end, begin)  # an unused tile
        last = end
    else:  # aligned, as `queries_each` is, so that lse and dot are loaded in pairs
        begin = begin // SHAPE.ROWS * SHAPE.ROWS
    block, BITS = 0, queries.BITS
    if BAND.BLOCK > 0:
        BITS += bh.to(tl.int64) * rows.T
        block = s0 // BAND.BLOCK
    own = Queries(queries.Q, queries.DOUT, queries.STATS, queries.slab, BITS)
    dk, dv = _dkv_queries(
        k, v, dk, dv, own, b, kv, part, share.heads_each, begin, end, last, first_sees, block, rows.T, rows.window,
        scale_log2, BAND, SHAPE,
    )  # fmt: skip
    at = (query_part * share.head_parts + part).to(tl.int64) * share.lists * keys.N
    tl.store(DK + (at + key_row) * D + k_within, (dk * scale).to(DK.dtype.element_ty), mask=k_mask)
    tl.store(DV_OUT + (at + key_row) * DV + v_within, dv.to(DV_OUT.dtype.element_ty), mask=v_mask)


UNSPECIALISED = [
    "NC", "NS", "NW", "past", "offset", "n_sequences", "lists",
    "end_s", "tiles_s", "head_parts_s", "heads_each_s", "queries_each_s",
    "end_c", "tiles_c", "head_parts_c", "heads_each_c", "queries_each_c",
    "tiles_w", "head_parts_w", "heads_each_w", "queries_each_w",
]  # fmt: skip


@Launcher
@triton.jit(do_not_specialize=UNSPECIALISED)
def dkv_kernel(
    Q, KC, VC, DKC, DVC, KS, VS, DKS, DVS, KW, VW, DKW, DVW, DOUT, STATS, BORDERS, BITS, T, NC, NS, NW, past, offset,
    window, scale, scale_log2, slab, n_sequences, lists,
    end_s, tiles_s, head_parts_s, heads_each_s, queries_each_s,
    end_c, tiles_c, head_parts_c, heads_each_c, queries_each_c,
    tiles_w, head_parts_w, heads_each_w, queries_each_w,
    COMPRESSED: tl.constexpr, SELECTED: tl.constexpr, WINDOW: tl.constexpr, SHAPE: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """One program of one band: those of the selected branch up to end_s, of the compressed one up to end_c."""
    slab = slab.to(tl.int64)
    number = tl.program_id(0)
    rows = Rows(BORDERS, n_sequences, T, past, window)
    if KS is not None:  # noqa: SIM102 (decided when it is compiled)
        if number < end_s:
            _dkv_band(
                Queries(Q, DOUT, STATS + slab, slab, BITS), Keys(KS, VS, NS, 0), DKS, DVS, rows, number,
                Share(lists, tiles_s, head_parts_s, heads_each_s, queries_each_s), scale, scale_log2,
                SELECTED, SHAPE, TOGETHER,
            )  # fmt: skip
    if KC is not None:  # noqa: SIM102 (decided when it is compiled)
        if (number >= end_s) & (number < end_c):
            _dkv_band(
                Queries(Q, DOUT, STATS, slab, BITS), Keys(KC, VC, NC, 0), DKC, DVC, rows, number - end_s,
                Share(lists, tiles_c, head_parts_c, heads_each_c, queries_each_c), scale, scale_log2,
                COMPRESSED, SHAPE, TOGETHER,
            )  # fmt: skip
    if KW is not None:  # noqa: SIM102 (decided when it is compiled)
        if number >= end_c:
            _dkv_band(
                Queries(Q, DOUT, STATS + 2 * slab, slab, BITS), Keys(KW, VW, NW, offset), DKW, DVW, rows, number - end_c,
                Share(lists, tiles_w, head_parts_w, heads_each_w, queries_each_w), scale, scale_log2,
                WINDOW, SHAPE, TOGETHER,
            )  # fmt: skip
