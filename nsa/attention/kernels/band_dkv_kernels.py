"""The kernel of `bands` for the gradients of keys and values; names and bands as in `band_kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

from nsa.attention.kernels.band_kernels import described
from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.packing import tile_of_slab


@triton.jit
def _dkv_queries(
    k, v, dk, dv, Q, DOUT, STATS, BITS, b, first_head, heads, begin, end, last, first_sees, block, row_length,
    window, scale_log2, slab,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, H: tl.constexpr,
    ROWS: tl.constexpr, WINDOWED: tl.constexpr, CHOSEN: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Add what the queries of [begin, end) of some heads give to dK and dV; `first_sees` is the first that sees
    each key; if CHOSEN, only those see them that selected `block`, by its bit in BITS, which are the KV head's.

    The last queries come first: programs that start together then read the same ones, from L2, however many queries
    see their keys. Queries from `last` on are not read. One loop over heads and tiles: as loops in a loop, the kernel needs more
    registers than there are.
    """
    od, odv, row = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, ROWS)
    steps = tl.cdiv(tl.maximum(end - begin, 0), ROWS)
    h, step = first_head, steps * 0
    for _ in range(0, steps * heads):
        first = begin + (steps - 1 - step) * ROWS
        query = first + row
        live = query < last
        if DESCRIBED:
            q = described(Q, b, first, h * D, ROWS, DP)
            do = described(DOUT, b, first, h * DV, ROWS, DVP)
        else:
            head_row = (b.to(tl.int64) * row_length + first) * H + h
            q_at = Q + head_row * D + row[:, None] * (H * D) + od[None, :]
            do_at = DOUT + head_row * DV + row[:, None] * (H * DV) + odv[None, :]
            q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
            do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
        row_at = (b * H + h).to(tl.int64) * row_length + query
        lse = tl.load(STATS + row_at, mask=live, other=0.0)  # whatever the probability is, dO is 0
        dot = tl.load(STATS + 3 * slab + row_at, mask=live, other=0.0)
        if CHOSEN:
            bits = tl.load(BITS + query, mask=live, other=0)
            lse = tl.where(((bits >> block) & 1) != 0, lse, float("inf"))
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
        step += 1
        h += tl.where(step == steps, 1, 0)
        step = tl.where(step == steps, 0, step)
    return dk, dv


@triton.jit
def _dkv_band(
    Q, K, V, DOUT, STATS, DK, DV_OUT, BORDERS, BITS, number, lists, tiles, head_parts, heads_each, queries_each, T, N,
    past, offset, window, scale, scale_log2, slab, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    BLOCK: tl.constexpr, PACKED: tl.constexpr, DESCRIBED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """Program `number` of a band: a tile of keys, some heads of their group and a range of the queries that see them.

    Every part of the heads and queries has a slab of its own, [B, N, Hkv, D]; their sum is taken afterwards, in one
    order. STATS are those of the band's branch, `lists` is B * Hkv.
    """
    kv_heads: tl.constexpr = H // GROUP
    # Early keys are seen by most queries: longest programs first; among them, TOGETHER tiles that read the same ones.
    within, number = number % TOGETHER, number // TOGETHER
    part, number = number % head_parts, number // head_parts
    bh, number = number % lists, number // lists
    b, kv = bh // kv_heads, bh % kv_heads
    groups = tl.cdiv(tiles, TOGETHER)
    tile, query_part = (
        number % groups * TOGETHER + within,
        number // groups,
    )  # beyond the last: no queries, no keys
    s0 = tile * COLUMNS
    row_length, all_keys = T, N
    if PACKED:  # from here on T and N are the ends of the tile's sequence
        keys = BORDERS + KEYS * (n_sequences + 1)
        s0, key_start, N, start, T = tile_of_slab(keys, BORDERS, tile, n_sequences, COLUMNS)
        offset = start - key_start * STRIDE
    oc, od, odv = tl.arange(0, COLUMNS), tl.arange(0, DP), tl.arange(0, DVP)
    key = s0 + oc
    key_row = (b.to(tl.int64) * all_keys + s0) * kv_heads + kv
    # Within a tile in 32 bits: twice as many would be held while the loop runs.
    k_within = oc[:, None] * (kv_heads * D) + od[None, :]
    v_within = oc[:, None] * (kv_heads * DV) + odv[None, :]
    k_mask = (key < N)[:, None] & (od < D)[None, :]
    v_mask = (key < N)[:, None] & (odv < DV)[None, :]
    if DESCRIBED:
        k = described(K, b, s0, kv * D, COLUMNS, DP)
        v = described(V, b, s0, kv * DV, COLUMNS, DVP)
    else:
        k = tl.load(K + key_row * D + k_within, mask=k_mask, other=0.0)
        v = tl.load(V + key_row * DV + v_within, mask=v_mask, other=0.0)
    dk = tl.zeros([COLUMNS, DP], tl.float32)
    dv = tl.zeros([COLUMNS, DVP], tl.float32)

    first_sees = offset + key * STRIDE + LENGTH - 1 - past  # the first query that sees each key
    first = offset + s0 * STRIDE + LENGTH - 1 - past
    begin = tl.maximum(tl.maximum(first, 0), query_part * queries_each)
    end = tl.minimum(T, (query_part + 1) * queries_each)
    if WINDOWED:
        end = tl.minimum(end, first + (tl.minimum(s0 + COLUMNS, N) - 1 - s0) * STRIDE + window)
    last = T
    if PACKED:  # from the first query that sees a key on, as those before may be another sequence's
        end = tl.where(s0 < N, end, begin)  # room for a tile that no sequence needed
        last = end
    else:  # aligned, so that lse and dot are read two by two; `queries_each` is
        begin = begin // ROWS * ROWS
    heads = tl.minimum(heads_each, GROUP - part * heads_each)
    block = 0
    if BLOCK > 0:
        BITS += bh.to(tl.int64) * row_length
        block = s0 // BLOCK
    dk, dv = _dkv_queries(
        k, v, dk, dv, Q, DOUT, STATS, BITS, b, kv * GROUP + part * heads_each, heads, begin, end, last, first_sees,
        block, row_length, window, scale_log2, slab, D, DP, DV, DVP, H, ROWS, WINDOWED, BLOCK > 0, DESCRIBED,
    )  # fmt: skip
    at = (query_part * head_parts + part).to(tl.int64) * lists * all_keys
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
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr,
    DVP: tl.constexpr, STRIDE: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr,
    HAS_C: tl.constexpr, HAS_S: tl.constexpr, HAS_W: tl.constexpr, PACKED: tl.constexpr,
    DESCRIBED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """One program of one band: those of the selected branch up to end_s, of the compressed one up to end_c."""
    slab = slab.to(tl.int64)
    number = tl.program_id(0)
    if HAS_S:  # noqa: SIM102 (decided when it is compiled)
        if number < end_s:
            _dkv_band(
                Q, KS, VS, DOUT, STATS + slab, DKS, DVS, BORDERS, BITS, number, lists, tiles_s, head_parts_s, heads_each_s,
                queries_each_s, T, NS, past, 0, window, scale, scale_log2, slab, n_sequences, H, GROUP, D, DP, DV, DVP,
                1, 1, 0, False, BLOCK, PACKED, DESCRIBED, ROWS, COLUMNS, TOGETHER,
            )  # fmt: skip
    if HAS_C:  # noqa: SIM102 (decided when it is compiled)
        if (number >= end_s) & (number < end_c):
            _dkv_band(
                Q, KC, VC, DOUT, STATS, DKC, DVC, BORDERS, BITS, number - end_s, lists, tiles_c, head_parts_c, heads_each_c,
                queries_each_c, T, NC, past, 0, window, scale, scale_log2, slab, n_sequences, H, GROUP, D, DP, DV, DVP,
                STRIDE, LENGTH, 1, False, 0, PACKED, DESCRIBED, ROWS, COLUMNS, TOGETHER,
            )  # fmt: skip
    if HAS_W:  # noqa: SIM102 (decided when it is compiled)
        if number >= end_c:
            _dkv_band(
                Q, KW, VW, DOUT, STATS + 2 * slab, DKW, DVW, BORDERS, BITS, number - end_c, lists, tiles_w, head_parts_w,
                heads_each_w, queries_each_w, T, NW, past, offset, window, scale, scale_log2, slab, n_sequences, H, GROUP,
                D, DP, DV, DVP, 1, 1, 0, True, 0, PACKED, DESCRIBED, ROWS, COLUMNS, TOGETHER,
            )  # fmt: skip
