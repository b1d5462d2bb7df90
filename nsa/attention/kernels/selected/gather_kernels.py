"""The kernels of `gather`."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from nsa.attention.kernels.bands.band_kernels import Gated, wide
from nsa.attention.kernels.gates import store_gated
from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.packing import (
    first_slab,
    list_of_entry,
    list_of_slab,
    tile_of_slab,
)


class Shape(NamedTuple):
    """The constants of a launch; those that end in P are powers of two."""

    H: int  # query heads
    GROUP: int  # of them, that share a KV head
    GROUP_P: int
    D: int  # head dim of q and k
    DP: int
    DV: int  # head dim of v
    DVP: int
    BLOCK: int  # keys
    BLOCK_P: int
    COUNT: int  # blocks that a query selects
    TOKENS_P: int  # of a tile of queries
    PACKED: bool
    DESCRIBED: bool  # whether blocks of keys and values come by tensor descriptors


class Keys(NamedTuple):
    """The keys and values of the selected branch, up to `end`; block i begins at token i * BLOCK + shift."""

    K: Any
    V: Any
    b: Any
    kv: Any
    end: Any
    shift: Any


class Union(NamedTuple):
    """The blocks of a tile of queries, and which of the tile's tokens selected each."""

    BLOCKS: Any
    TOKENS: Any
    count: Any


@triton.jit
def _merge(block_a, tokens_a, block_b, tokens_b):
    """Scan step over sorted blocks: collect the tokens of equal ones."""
    return block_b, tl.where(block_a == block_b, tokens_a | tokens_b, tokens_b)


@Launcher
@triton.jit(do_not_specialize=["n_sequences"])
def unions_kernel(
    BLOCKS, UNION, TOKENS, UNION_COUNT, STARTS, T, n_sequences,
    COUNT: tl.constexpr, COUNT_P: tl.constexpr, TOKENS_P: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    ENTRIES: tl.constexpr = TOKENS_P * COUNT_P
    entry = tl.arange(0, ENTRIES)
    token, slot = entry // COUNT_P, entry % COUNT_P
    first, row_length = tl.program_id(0) * TOKENS_P, T
    if PACKED:
        first, _, T, _, _ = tile_of_slab(STARTS, STARTS, tl.program_id(0), n_sequences, TOKENS_P)
    query = first + token
    blocks_at = BLOCKS + (tl.program_id(1).to(tl.int64) * row_length + query) * COUNT + slot
    block = tl.load(blocks_at, mask=(slot < COUNT) & (query < T), other=-1)
    NONE: tl.constexpr = 0x7FFFFFFF
    key = tl.sort(tl.where(block >= 0, block * TOKENS_P + token, NONE))
    block = key // TOKENS_P
    bit = tl.full([ENTRIES], 1, tl.int32) << (key % TOKENS_P)
    block, bits = tl.associative_scan((block, bit), 0, _merge)
    following = tl.gather(block, tl.minimum(entry + 1, ENTRIES - 1), 0)
    last = (key != NONE) & ((following != block) | (entry == ENTRIES - 1))
    place = tl.cumsum(last.to(tl.int32), 0) - 1
    tile = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    union_at, tokens_at = UNION + tile * (TOKENS_P * COUNT), TOKENS + tile * (TOKENS_P * COUNT)
    count = tl.sum(last.to(tl.int32), 0)
    tl.store(union_at + place, block, mask=last)
    tl.store(tokens_at + place, bits, mask=last)
    tl.store(UNION_COUNT + tile, count)
    behind = (entry >= count) & (entry < TOKENS_P * COUNT)
    tl.store(union_at + entry, -1, mask=behind)
    tl.store(tokens_at + entry, 0, mask=behind)


@triton.jit
def _block_of(X, keys, block, D: tl.constexpr, DP: tl.constexpr, MASKED: tl.constexpr, SHAPE: tl.constexpr):
    """The keys, or values, of one block, [BLOCK_P, DP]; 0 after the last of the sequence, which only MASKED blocks have."""
    first = block * SHAPE.BLOCK + keys.shift
    if SHAPE.DESCRIBED:
        tile = tl.reshape(X.load([keys.b, first, keys.kv * D]), (SHAPE.BLOCK_P, DP))
        if MASKED and SHAPE.PACKED:  # the next sequence may hold NaN
            tile = tl.where((first + tl.arange(0, SHAPE.BLOCK_P) < keys.end)[:, None], tile, 0.0)
    else:
        KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
        od, ob = tl.arange(0, DP), tl.arange(0, SHAPE.BLOCK_P)
        at = X + (first.to(tl.int64) * KV_HEADS + keys.kv) * D + ob[:, None] * (KV_HEADS * D) + od[None, :]
        inside = (first + ob < keys.end) & (ob < SHAPE.BLOCK)
        tile = tl.load(at, mask=inside[:, None] & (od < D)[None, :], other=0.0)
    return tile


@triton.jit
def _next(union, i):
    """Block i of a union and its tokens, loaded one iteration ahead, as the addresses of its keys depend on them."""
    at = tl.minimum(i, union.count - 1)
    return tl.load(union.BLOCKS + at), tl.load(union.TOKENS + at)


@triton.jit
def _forward_blocks(
    q, m, norm, acc, next_block, next_tokens, keys, union, begin, end, token, query, scale_log2,
    MASKED: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Take the blocks [begin, end) of a union into the running softmax; if not MASKED, they are in every query's past."""
    ob = tl.arange(0, SHAPE.BLOCK_P)
    for i in range(begin, end):
        block, tokens = next_block, next_tokens
        next_block, next_tokens = _next(union, i + 1)
        k = _block_of(keys.K, keys, block, SHAPE.D, SHAPE.DP, MASKED, SHAPE)
        v = _block_of(keys.V, keys, block, SHAPE.DV, SHAPE.DVP, MASKED, SHAPE)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        selected = ((tokens >> token) & 1) != 0
        if MASKED:
            # A token that did not select the block sees no key up to -1: one comparison does for both masks.
            key = block * SHAPE.BLOCK + keys.shift + ob
            seen = key[None, :] <= tl.where(selected, query, -1)[:, None]
            if SHAPE.BLOCK != SHAPE.BLOCK_P:
                seen = seen & (ob < SHAPE.BLOCK)[None, :]
            s = tl.where(seen, s, float("-inf"))
        elif SHAPE.BLOCK != SHAPE.BLOCK_P:
            s = tl.where((ob < SHAPE.BLOCK)[None, :], s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1) * scale_log2)
        subtracted = m_new
        if not MASKED:  # row by row, which is cheaper than score by score
            m_new = tl.where(selected, m_new, m)
            subtracted = tl.where(selected, m_new, float("inf"))
        p = tl.exp2(s * scale_log2 - subtracted[:, None])
        shrink = tl.exp2(m - m_new)
        norm = norm * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        m = m_new
    return m, norm, acc, next_block, next_tokens


@triton.jit
def _dq_blocks(
    q, do, lse, dot, acc, next_block, next_tokens, keys, union, begin, end, token, query, scale_log2,
    MASKED: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Add what the blocks [begin, end) of a union give to dQ, not yet scaled; MASKED as above."""
    ob = tl.arange(0, SHAPE.BLOCK_P)
    for i in range(begin, end):
        block, tokens = next_block, next_tokens
        next_block, next_tokens = _next(union, i + 1)
        k = _block_of(keys.K, keys, block, SHAPE.D, SHAPE.DP, MASKED, SHAPE)
        v = _block_of(keys.V, keys, block, SHAPE.DV, SHAPE.DVP, MASKED, SHAPE)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        selected = ((tokens >> token) & 1) != 0
        p = tl.exp2(s * scale_log2 - tl.where(selected, lse, float("inf"))[:, None])
        if MASKED:
            key = block * SHAPE.BLOCK + keys.shift + ob
            seen = key[None, :] <= query[:, None]
            if SHAPE.BLOCK != SHAPE.BLOCK_P:
                seen = seen & (ob < SHAPE.BLOCK)[None, :]
            p = tl.where(seen, p, 0.0)
        elif SHAPE.BLOCK != SHAPE.BLOCK_P:
            p = tl.where((ob < SHAPE.BLOCK)[None, :], p, 0.0)
        ds = p * (dp - dot[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc, input_precision="ieee")
    return acc, next_block, next_tokens


@triton.jit
def _tile(
    K, V, UNION, TOKENS, UNION_COUNT, STARTS, FIRST_BLOCKS, T, S, n_sequences, SHAPE: tl.constexpr
):  # fmt: skip
    """A program's tile: its first token and the end of its sequence, batch row and KV head, its keys, its blocks, and how
    many of those are wholly in the past of the first token; the others are a union's last."""
    NEWEST: tl.constexpr = (SHAPE.TOKENS_P + SHAPE.BLOCK - 2) // SHAPE.BLOCK + 1
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    b, kv = tl.program_id(1) // KV_HEADS, tl.program_id(1) % KV_HEADS
    first, end, shift = tl.program_id(0) * SHAPE.TOKENS_P, S, tl.program_id(0) * 0
    if not SHAPE.DESCRIBED:
        K += b.to(tl.int64) * S * KV_HEADS * SHAPE.D
        V += b.to(tl.int64) * S * KV_HEADS * SHAPE.DV
    if SHAPE.PACKED:  # from here on the end is that of the tile's sequence
        first, start, T, first_block, _ = tile_of_slab(
            STARTS, FIRST_BLOCKS, tl.program_id(0), n_sequences, SHAPE.TOKENS_P
        )
        end, shift = T, start - first_block * SHAPE.BLOCK
    tile = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    count = tl.load(UNION_COUNT + tile)
    UNION += tile * (SHAPE.TOKENS_P * SHAPE.COUNT)
    TOKENS += tile * (SHAPE.TOKENS_P * SHAPE.COUNT)
    keys, union = Keys(K, V, b, kv, end, shift), Union(UNION, TOKENS, count)
    return first, T, b, kv, keys, union, tl.maximum(count - NEWEST, 0)


@Launcher
@triton.jit(do_not_specialize=["past", "S", "n_sequences"])
def forward_kernel(
    Q, K, V, OUT, LSE, UNION, TOKENS, UNION_COUNT, COMPRESSED, WINDOW, GATES, SUM, STARTS, FIRST_BLOCKS, T, S, past,
    scale_log2, n_sequences,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """The output of the selected branch, and its sum with those of the other branches by their gates."""
    DVP: tl.constexpr = SHAPE.DVP
    H: tl.constexpr = SHAPE.H
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    ROWS: tl.constexpr = SHAPE.TOKENS_P * SHAPE.GROUP_P
    first, end, b, kv, keys, union, past_only = _tile(
        K, V, UNION, TOKENS, UNION_COUNT, STARTS, FIRST_BLOCKS, T, S, n_sequences, SHAPE
    )
    row = tl.arange(0, ROWS)
    token, head = row // SHAPE.GROUP_P, row % SHAPE.GROUP_P
    live = (first + token < end) & (head < SHAPE.GROUP)
    od, odv = tl.arange(0, SHAPE.DP), tl.arange(0, DVP)
    begin_row = (b.to(tl.int64) * T + first) * H + kv * SHAPE.GROUP
    row_offset = token * H + head
    q_at = Q + begin_row * D + row_offset[:, None] * D + od[None, :]
    q = tl.load(q_at, mask=live[:, None] & (od < D)[None, :], other=0.0)
    query = past + first + token

    m = tl.full([ROWS], -1e30, tl.float32)  # finite, so that a score of -inf is a probability of 0
    norm = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DVP], tl.float32)
    block = tl.load(union.BLOCKS, mask=union.count > 0, other=0)
    tokens = tl.load(union.TOKENS, mask=union.count > 0, other=0)
    m, norm, acc, block, tokens = _forward_blocks(
        q, m, norm, acc, block, tokens, keys, union, 0, past_only, token, query, scale_log2, False, SHAPE
    )
    m, norm, acc, _, _ = _forward_blocks(
        q,
        m,
        norm,
        acc,
        block,
        tokens,
        keys,
        union,
        past_only,
        union.count,
        token,
        query,
        scale_log2,
        True,
        SHAPE,
    )
    norm = tl.where(norm > 0, norm, 1.0)
    out = (acc / norm[:, None]).to(OUT.dtype.element_ty)
    out_at = begin_row * DV + row_offset[:, None] * DV + odv[None, :]
    mask = live[:, None] & (odv < DV)[None, :]
    tl.store(OUT + out_at, out, mask=mask)
    gates_at = GATES + (begin_row + row_offset) * 3
    store_gated(Gated(COMPRESSED, WINDOW, GATES, SUM), out, gates_at, out_at, live, mask)
    lse_at = LSE + (b * H + kv * SHAPE.GROUP + head).to(tl.int64) * T + first + token
    tl.store(lse_at, m + tl.log2(norm), mask=live)


@Launcher
@triton.jit(do_not_specialize=["past", "S", "slab", "n_sequences"])
def dq_kernel(
    Q, K, V, DOUT, STATS, DQ, UNION, TOKENS, UNION_COUNT, STARTS, FIRST_BLOCKS, T, S, past, scale, scale_log2, slab,
    n_sequences,
    SHAPE: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """The gradient of q of the selected branch. STATS holds `slab` = B * H * T numbers for each branch."""
    DP: tl.constexpr = SHAPE.DP
    H: tl.constexpr = SHAPE.H
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    ROWS: tl.constexpr = SHAPE.TOKENS_P * SHAPE.GROUP_P
    slab = slab.to(tl.int64)
    STATS += slab
    first, end, b, kv, keys, union, past_only = _tile(
        K, V, UNION, TOKENS, UNION_COUNT, STARTS, FIRST_BLOCKS, T, S, n_sequences, SHAPE
    )
    row = tl.arange(0, ROWS)
    token, head = row // SHAPE.GROUP_P, row % SHAPE.GROUP_P
    live = (first + token < end) & (head < SHAPE.GROUP)
    od, odv = tl.arange(0, DP), tl.arange(0, SHAPE.DVP)
    begin_row = (b.to(tl.int64) * T + first) * H + kv * SHAPE.GROUP
    row_offset = token * H + head
    q_offset = begin_row * D + row_offset[:, None] * D + od[None, :]
    q_mask = live[:, None] & (od < D)[None, :]
    q = tl.load(Q + q_offset, mask=q_mask, other=0.0)
    do_at = DOUT + begin_row * DV + row_offset[:, None] * DV + odv[None, :]
    do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
    row_at = (b * H + kv * SHAPE.GROUP + head).to(tl.int64) * T + first + token
    lse = tl.load(STATS + row_at, mask=live, other=0.0)
    dot = tl.load(STATS + 3 * slab + row_at, mask=live, other=0.0)
    query = past + first + token

    acc = tl.zeros([ROWS, DP], tl.float32)
    block = tl.load(union.BLOCKS, mask=union.count > 0, other=0)
    tokens = tl.load(union.TOKENS, mask=union.count > 0, other=0)
    acc, block, tokens = _dq_blocks(
        q, do, lse, dot, acc, block, tokens, keys, union, 0, past_only, token, query, scale_log2, False, SHAPE
    )
    acc, _, _ = _dq_blocks(
        q, do, lse, dot, acc, block, tokens, keys, union, past_only, union.count, token, query, scale_log2, True, SHAPE
    )  # fmt: skip
    acc = acc * scale
    if ADD:
        acc += tl.load(DQ + q_offset, mask=q_mask, other=0.0).to(tl.float32)
    tl.store(DQ + q_offset, acc.to(DQ.dtype.element_ty), mask=q_mask)


@triton.jit
def _block_span(STARTS, FIRST_BLOCKS, block, S, n_sequences, BLOCK: tl.constexpr, PACKED: tl.constexpr):
    """The first token of a block, and the end of its sequence."""
    first = block * BLOCK
    if PACKED:
        number = list_of_entry(FIRST_BLOCKS, block, n_sequences)
        first = tl.load(STARTS + number) + (block - tl.load(FIRST_BLOCKS + number)) * BLOCK
        S = tl.load(STARTS + number + 1)
    return first, S


@triton.jit
def _four(TOKEN, at, end):
    """Four tokens of a list from `at` on, -1 after its end, as scalars, which take fewer registers than a tile's rows."""
    a = tl.load(TOKEN + at, mask=at < end, other=-1)
    b = tl.load(TOKEN + at + 1, mask=at + 1 < end, other=-1)
    c = tl.load(TOKEN + at + 2, mask=at + 2 < end, other=-1)
    d = tl.load(TOKEN + at + 3, mask=at + 3 < end, other=-1)
    return a, b, c, d


@Launcher
@triton.jit(do_not_specialize=["past", "S", "slab", "n_blocks", "n_lists", "n_sequences"])
def dkv_kernel(
    Q, K, V, DOUT, STATS, DK, DV_OUT, TOKEN, LIST, STARTS, FIRST_BLOCKS, T, S, past, n_blocks, n_lists, scale,
    scale_log2, slab, n_sequences,
    SHAPE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program: one chunk of the tokens that chose one block."""
    BLOCK_P: tl.constexpr = SHAPE.BLOCK_P
    DP: tl.constexpr = SHAPE.DP
    DVP: tl.constexpr = SHAPE.DVP
    H: tl.constexpr = SHAPE.H
    D: tl.constexpr = SHAPE.D
    DV: tl.constexpr = SHAPE.DV
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    ROWS: tl.constexpr = SHAPE.TOKENS_P * SHAPE.GROUP_P
    slab = slab.to(tl.int64)
    STATS += slab
    share = tl.program_id(0)
    number = list_of_slab(LIST, share, n_lists, CHUNK)  # which list: (batch, head, block)
    begin = tl.load(LIST + number) + (share - first_slab(LIST, number, CHUNK)) * CHUNK
    list_end = tl.load(LIST + number + 1)
    if begin >= list_end:
        return
    end = tl.minimum(begin + CHUNK, list_end)
    block, bh = number % n_blocks, number // n_blocks
    b, kv = bh // KV_HEADS, bh % KV_HEADS
    row = tl.arange(0, ROWS)
    head = row % SHAPE.GROUP_P
    od, odv, ob = tl.arange(0, DP), tl.arange(0, DVP), tl.arange(0, BLOCK_P)
    all_keys = S
    first_key, S = _block_span(STARTS, FIRST_BLOCKS, block, S, n_sequences, SHAPE.BLOCK, SHAPE.PACKED)
    key = first_key + ob
    inside = (key < S) & (ob < SHAPE.BLOCK)
    key_row = (b.to(tl.int64) * all_keys + first_key) * KV_HEADS + kv
    k_at = K + key_row * D + ob[:, None] * (KV_HEADS * D) + od[None, :]
    v_at = V + key_row * DV + ob[:, None] * (KV_HEADS * DV) + odv[None, :]
    k = tl.load(k_at, mask=inside[:, None] & (od < D)[None, :], other=0.0)
    v = tl.load(v_at, mask=inside[:, None] & (odv < DV)[None, :], other=0.0)
    dk = tl.zeros([BLOCK_P, DP], tl.float32)
    dv = tl.zeros([BLOCK_P, DVP], tl.float32)
    first_row = b.to(tl.int64) * T * H + kv * SHAPE.GROUP
    STATS += (b * H + kv * SHAPE.GROUP).to(tl.int64) * T
    which = row // SHAPE.GROUP_P
    FOUR: tl.constexpr = SHAPE.TOKENS_P == 4
    if FOUR:  # loaded one iteration ahead, as the addresses of queries depend on them
        t0, t1, t2, t3 = _four(TOKEN, begin, end)
    for i in range(begin, end, SHAPE.TOKENS_P):
        if FOUR:
            token = tl.where(which < 2, tl.where(which == 0, t0, t1), tl.where(which == 2, t2, t3))
            live = (token >= 0) & (head < SHAPE.GROUP)
            token = tl.maximum(token, 0)
            t0, t1, t2, t3 = _four(TOKEN, i + 4, end)
        else:
            live = (i + which < end) & (head < SHAPE.GROUP)
            token = tl.load(TOKEN + i + which, mask=live, other=0)
        q_row = first_row + token.to(tl.int64) * H + head
        q = tl.load(Q + q_row[:, None] * D + od[None, :], mask=live[:, None] & (od < D)[None, :], other=0.0)
        do_at = DOUT + q_row[:, None] * DV + odv[None, :]
        do = tl.load(do_at, mask=live[:, None] & (odv < DV)[None, :], other=0.0)
        row_at = head * T + token
        lse = tl.load(STATS + row_at, mask=live, other=0.0)
        dot = tl.load(STATS + 3 * slab + row_at, mask=live, other=0.0)
        s = tl.dot(k, tl.trans(q), input_precision="ieee")
        seen = key[:, None] <= tl.where(live, past + token, -1)[None, :]
        p = tl.where(seen, tl.exp2(s * scale_log2 - lse[None, :]), 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")
        ds = p * (dp - dot[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    slab_row = share.to(tl.int64) * SHAPE.BLOCK
    within = (ob < SHAPE.BLOCK)[:, None]
    dk_at = DK + slab_row * D + ob[:, None] * D + od[None, :]
    dv_at = DV_OUT + slab_row * DV + ob[:, None] * DV + odv[None, :]
    tl.store(dk_at, dk * scale, mask=within & (od < D)[None, :])
    tl.store(dv_at, dv, mask=within & (odv < DV)[None, :])


@triton.jit
def _sum_slabs(
    PART, OUT, begin, end, first_row, kv, n_keys,
    KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    od = tl.arange(0, DP)
    mask = (key < BLOCK)[:, None] & (od < D)[None, :]
    acc = tl.zeros([KEYS, DP], tl.float32)
    for chunk in range(begin, end):
        slab = wide(chunk) * BLOCK * D
        acc += tl.load(PART + slab + key[:, None] * D + od[None, :], mask=mask, other=0.0)
    out_at = OUT + (first_row * KV_HEADS + kv) * D + key[:, None] * (KV_HEADS * D) + od[None, :]
    mask = mask & (key < n_keys)[:, None]
    tl.store(out_at, acc.to(OUT.dtype.element_ty), mask=mask)


@Launcher
@triton.jit(do_not_specialize=["S", "n_blocks", "n_sequences"])
def sum_chunks_kernel(
    DK_PART, DV_PART, DK, DV_OUT, LIST, STARTS, FIRST_BLOCKS, S, n_blocks, n_sequences,
    KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, KEYS: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Sum the chunks of one block in their order, and put the sums where its keys are."""
    number = tl.program_id(0)
    block, bh = number % n_blocks, number // n_blocks
    b, kv = bh // KV_HEADS, bh % KV_HEADS
    begin = first_slab(LIST, number, CHUNK)
    end = begin + tl.cdiv(tl.load(LIST + number + 1) - tl.load(LIST + number), CHUNK)
    first_key, sequence_end = _block_span(STARTS, FIRST_BLOCKS, block, S, n_sequences, BLOCK, PACKED)
    row = b.to(tl.int64) * S + first_key
    _sum_slabs(DK_PART, DK, begin, end, row, kv, sequence_end - first_key, KV_HEADS, D, DP, BLOCK, KEYS)
    _sum_slabs(DV_PART, DV_OUT, begin, end, row, kv, sequence_end - first_key, KV_HEADS, DV, DVP, BLOCK, KEYS)
