"""Importance of selection blocks and the top n of them (Eq. 8 to 12).

One kernel scores the blocks and another takes the best n of each query. Scores go through memory, for a limited number
of queries at a time: one kernel that also kept a running best n in registers was slower.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.bands.band_kernels import described, wide
from nsa.attention.kernels.descriptors import describable, tokens_descriptor
from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.packing import BLOCKS, COMPRESSED, n_sequences, n_tiles, rows_of, tile_of_slab
from nsa.attention.kernels.tiles import (
    FEW_ROWS,
    LOG2_E,
    SCORE_REGISTERS,
    Tile,
    ceil_div,
    padded,
    power_of_two,
    selection_tile,
)

SCORES = 2**26  # in memory at once, 256 MiB
PARTS = 4  # programs that share a tile of queries


class Selection(NamedTuple):
    """The lengths of `AttentionConfig` that selection depends on; blocks in tokens, the rest in blocks."""

    stride: int
    length: int
    block: int
    count: int
    initial: int
    local: int


class Shape(NamedTuple):
    """The constants of a kernel that scores; those that end in P are powers of two."""

    H: int  # query heads
    GROUP: int  # of them, that share a KV head
    D: int  # head dim
    DP: int
    STRIDE: int  # tokens between compressed keys
    LENGTH: int  # tokens of one
    PER_BLOCK: int  # compressed keys that begin in a selection block
    PER_BLOCK_P: int
    REACH: int  # others that end in it
    PACKED: bool
    DESCRIBED: bool
    ROWS: int  # queries of a tile
    COLUMNS: int  # selection blocks of a tile


@triton.jit
def _importance(
    Q, q_at, K, k_at, lse_at, live, b, kv, first, first_key, j0, N, first_query, row_length, scale_log2,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """Eq. 8 to 10 for the blocks from j0 on: [ROWS, COLUMNS], and the contribution of the last one's keys to the next block.

    PER_BLOCK compressed keys begin in a selection block, and REACH earlier ones end in it; the contribution of those
    that begin before j0 is left out.
    """
    ROWS: tl.constexpr = SHAPE.ROWS
    COLUMNS: tl.constexpr = SHAPE.COLUMNS
    PER_BLOCK_P: tl.constexpr = SHAPE.PER_BLOCK_P
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    row, column, od = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, SHAPE.DP)
    # One axis for the keys of all blocks of a tile: PER_BLOCK_P for each, of which PER_BLOCK are keys.
    KEYS: tl.constexpr = COLUMNS * PER_BLOCK_P
    each = tl.arange(0, KEYS)
    tap = tl.arange(0, PER_BLOCK_P)
    # The number of strides that a key shares with its block, and with the next one.
    shared = tl.maximum(tl.minimum(SHAPE.PER_BLOCK - tap, SHAPE.REACH + 1), 0).to(tl.float32)
    spills = tl.where(tap < SHAPE.PER_BLOCK, tl.maximum(tap + SHAPE.REACH + 1 - SHAPE.PER_BLOCK, 0), 0).to(
        tl.float32
    )
    key = (j0 + each // PER_BLOCK_P) * SHAPE.PER_BLOCK + each % PER_BLOCK_P
    is_key = (each % PER_BLOCK_P < SHAPE.PER_BLOCK) & (key < N)
    # The keys stay in shared memory for all heads of the group.
    if SHAPE.DESCRIBED:
        k = tl.trans(described(K, b, first_key + j0 * SHAPE.PER_BLOCK, kv * SHAPE.D, KEYS, SHAPE.DP))
    else:
        keys_at = k_at + wide(j0) * (SHAPE.PER_BLOCK * KV_HEADS * SHAPE.D)
        keys_at += (key - j0 * SHAPE.PER_BLOCK)[None, :] * (KV_HEADS * SHAPE.D) + od[:, None]
        k = tl.load(keys_at, mask=is_key[None, :] & (od < SHAPE.D)[:, None], other=0.0)
    p = tl.zeros([ROWS, KEYS], tl.float32)
    for g in range(SHAPE.GROUP):
        if SHAPE.DESCRIBED:
            q = described(Q, b, first, (kv * SHAPE.GROUP + g) * SHAPE.D, ROWS, SHAPE.DP)
        else:
            q = tl.load(q_at + g * SHAPE.D, mask=live[:, None] & (od < SHAPE.D)[None, :], other=0.0)
        lse = tl.load(lse_at + wide(g) * row_length, mask=live, other=0.0)
        s = tl.dot(q, k, input_precision="ieee")
        p += tl.exp2(s * scale_log2 - lse[:, None])
    last_end = ((j0 + COLUMNS) * SHAPE.PER_BLOCK - 1) * SHAPE.STRIDE + SHAPE.LENGTH - 1
    if SHAPE.PER_BLOCK != PER_BLOCK_P or last_end > first_query:
        seen = (key * SHAPE.STRIDE + SHAPE.LENGTH - 1)[None, :] <= (first_query + row)[:, None]
        p = tl.where(seen & is_key[None, :], p, 0.0)
    # Every block adds its keys in the same order, so blocks of equal keys tie bit for bit.
    p = tl.reshape(p, [ROWS, COLUMNS, PER_BLOCK_P])
    importance = tl.sum(p * shared[None, None, :], 2)
    given = tl.zeros([ROWS], tl.float32)
    if SHAPE.REACH > 0:
        spilled = tl.sum(p * spills[None, None, :], 2)
        before = tl.broadcast_to(tl.maximum(column - 1, 0)[None, :], [ROWS, COLUMNS])
        importance += tl.where((column == 0)[None, :], 0.0, tl.gather(spilled, before, 1))
        given = tl.sum(tl.where((column == COLUMNS - 1)[None, :], spilled, 0.0), 1)
    return importance, given


@Launcher
@triton.jit(do_not_specialize=["N", "past", "first_tile", "n_sequences"])
def _score(
    Q, K, LSE, SCORES, GIVEN, TOKENS, FIRST_KEYS, T, N, past, first_tile, scale_log2, n_sequences,
    BLOCKS_P: tl.constexpr, PARTS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """The importance of the blocks that the queries of a tile see: SCORES [B * Hkv, tiles, ROWS, BLOCKS_P].

    The first of COLUMNS neighbouring blocks lacks the contribution of the block before it, which is in GIVEN
    [B * Hkv, tiles, ROWS, BLOCKS_P / COLUMNS]. PARTS programs share a tile of queries and read it at the same time: if
    every program had its own, the queries in use would not fit into L2.
    """
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    # The last queries see the most blocks: longest programs first.
    slab = tl.num_programs(1) - 1 - tl.program_id(1)
    first, row_length, all_keys = (first_tile + slab) * SHAPE.ROWS, T, N
    first_key = slab * 0
    part, bh = tl.program_id(0) % PARTS, tl.program_id(0) // PARTS
    b, kv = bh // KV_HEADS, bh % KV_HEADS
    if SHAPE.PACKED:  # from here on T is its sequence's end, and blocks and keys count from its start
        first, start, T, first_key, keys_end = tile_of_slab(
            TOKENS, FIRST_KEYS, first_tile + slab, n_sequences, SHAPE.ROWS
        )
        N, past = keys_end - first_key, -start
        if first >= T:
            return
    row, column, od = tl.arange(0, SHAPE.ROWS), tl.arange(0, SHAPE.COLUMNS), tl.arange(0, SHAPE.DP)
    live = first + row < T
    q_at, k_at = Q, K
    if not SHAPE.DESCRIBED:
        begin_row = (b.to(tl.int64) * row_length + first) * SHAPE.H + kv * SHAPE.GROUP
        q_at += begin_row * SHAPE.D + row[:, None] * (SHAPE.H * SHAPE.D) + od[None, :]
        k_at += ((b.to(tl.int64) * all_keys + first_key) * KV_HEADS + kv) * SHAPE.D
    lse_at = LSE + (b * SHAPE.H + kv * SHAPE.GROUP).to(tl.int64) * row_length + first + row
    newest = past + tl.minimum(first + SHAPE.ROWS, T) - 1
    tile_row = (bh.to(tl.int64) * tl.num_programs(1) + slab) * SHAPE.ROWS + row
    for j0 in range(
        part * SHAPE.COLUMNS, newest // (SHAPE.PER_BLOCK * SHAPE.STRIDE) + 1, PARTS * SHAPE.COLUMNS
    ):
        importance, given = _importance(
            Q, q_at, K, k_at, lse_at, live, b, kv, first, first_key, j0, N, past + first, row_length, scale_log2,
            SHAPE,
        )  # fmt: skip
        scores_at = SCORES + tile_row[:, None] * BLOCKS_P + j0 + column[None, :]
        tl.store(scores_at, importance, mask=(j0 + column < BLOCKS_P)[None, :])
        if SHAPE.REACH > 0:
            tl.store(GIVEN + tile_row * tl.cdiv(BLOCKS_P, SHAPE.COLUMNS) + j0 // SHAPE.COLUMNS, given)


@Launcher
@triton.jit(do_not_specialize=["past", "first_tile", "n_sequences"])
def _best(
    SCORES, GIVEN, BLOCKS, TOKENS, FIRST_BLOCKS, T, past, first_tile, n_sequences,
    COUNT: tl.constexpr, COUNT_P: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, BLOCKS_P: tl.constexpr,
    SHAPE: tl.constexpr,
):  # fmt: skip
    """The blocks of the COUNT highest scores of one query, ascending. The threshold, the highest score that COUNT blocks reach, is found bit by bit.

    Scores are not negative, so their bits order them. Ties for the last place go to the lower blocks.
    """
    BLOCK: tl.constexpr = SHAPE.PER_BLOCK * SHAPE.STRIDE
    slab, row = tl.program_id(0) // SHAPE.ROWS, tl.program_id(0) % SHAPE.ROWS
    row_length, first_block = T, slab * 0
    query = (first_tile + slab) * SHAPE.ROWS + row
    if SHAPE.PACKED:
        first, start, T, first_block, _ = tile_of_slab(
            TOKENS, FIRST_BLOCKS, first_tile + slab, n_sequences, SHAPE.ROWS
        )
        query, past = first + row, -start
    if query >= T:
        return
    block, own = tl.arange(0, BLOCKS_P), (past + query) // BLOCK
    tile_row = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    score = tl.load(SCORES + tile_row * BLOCKS_P + block, mask=block <= own, other=0.0)
    if SHAPE.REACH > 0:
        given_at = GIVEN + tile_row * tl.cdiv(BLOCKS_P, SHAPE.COLUMNS) + block // SHAPE.COLUMNS - 1
        first_of_tile = (block % SHAPE.COLUMNS == 0) & (block > 0)
        score += tl.load(given_at, mask=first_of_tile & (block <= own), other=0.0)
    score = score.to(tl.int32, bitcast=True)
    score = tl.where((block < INITIAL) | (block > own - LOCAL), 0x7FFFFFFF, tl.maximum(score, 0))
    score = tl.where(block <= own, score, -1)

    threshold, reached, bit = own * 0, own + 1, own * 0 + (1 << 30)
    while (reached > COUNT) & (bit > 0):
        higher = tl.sum((score >= (threshold | bit)).to(tl.int32), 0)
        threshold = tl.where(higher >= COUNT, threshold | bit, threshold)
        reached = tl.where(higher >= COUNT, higher, reached)
        bit = bit >> 1
    above, level = score > threshold, score == threshold
    room = COUNT - tl.sum(above.to(tl.int32), 0)
    # One running count of both kinds: at most COUNT are above, and no tensor has 2^20 elements.
    before = tl.cumsum(tl.where(above, 1 << 20, level.to(tl.int32)), 0)
    before_above, before_level = before >> 20, before & 0xFFFFF
    chosen = above | (level & (before_level <= room))
    place = before_above + tl.minimum(before_level, room) - 1
    blocks_at = BLOCKS + (tl.program_id(1).to(tl.int64) * row_length + query) * COUNT
    tl.store(blocks_at + place, block + first_block, mask=chosen)
    slot = tl.arange(0, COUNT_P)
    tl.store(blocks_at + slot, -1, mask=(slot >= tl.minimum(own + 1, COUNT)) & (slot < COUNT))


@Launcher
@triton.jit(do_not_specialize=["N", "past"])
def _select_few(
    Q, K, LSE, BITS, T, N, past, scale_log2,
    COUNT: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """Selection if COLUMNS covers all blocks: a block is selected if fewer than COUNT others rank before it."""
    COLUMNS: tl.constexpr = SHAPE.COLUMNS
    KV_HEADS: tl.constexpr = SHAPE.H // SHAPE.GROUP
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * SHAPE.ROWS
    b, kv = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    row, column, od = tl.arange(0, SHAPE.ROWS), tl.arange(0, COLUMNS), tl.arange(0, SHAPE.DP)
    live = first + row < T
    q_row = b.to(tl.int64) * T + first
    q_at = (
        Q + (q_row * SHAPE.H + kv * SHAPE.GROUP) * SHAPE.D + row[:, None] * (SHAPE.H * SHAPE.D) + od[None, :]
    )
    lse_at = LSE + (b * SHAPE.H + kv * SHAPE.GROUP).to(tl.int64) * T + first + row
    k_at = K + (b.to(tl.int64) * N * KV_HEADS + kv) * SHAPE.D
    importance, _ = _importance(
        Q, q_at, K, k_at, lse_at, live, b, kv, first, 0, 0, N, past + first, T, scale_log2, SHAPE
    )
    own = (past + first + row) // (SHAPE.PER_BLOCK * SHAPE.STRIDE)
    forced = (column < INITIAL)[None, :] | (column[None, :] > own[:, None] - LOCAL)
    importance = tl.where(forced, float("inf"), importance)
    visible = column[None, :] <= own[:, None]
    importance = tl.where(visible, importance, float("-inf"))
    one, other = importance[:, :, None], importance[:, None, :]
    before = (other > one) | ((other == one) & (column[None, None, :] < column[None, :, None]))
    chosen = (tl.sum(before.to(tl.int32), 2) < COUNT) & visible
    bits = tl.sum(tl.where(chosen, tl.full([COLUMNS], 1, tl.int32)[None, :] << column[None, :], 0), 1)
    tl.store(BITS + tl.program_id(0).to(tl.int64) * T + first + row, bits, mask=live)


def select_few(q: Tensor, k: Tensor, lse: Tensor, lengths: Selection, past: int) -> Tensor:
    """The selection of at most 32 blocks, int32 [B, Hkv, T]: bit i is block i. Arguments as in `select`."""
    batch, n_queries, _, dim = q.shape
    kv_heads, n_keys = k.shape[2], k.shape[1]
    n_blocks = ceil_div(past + n_queries, lengths.block)
    bits = q.new_empty(batch, kv_heads, n_queries, dtype=torch.int32)
    shape = _shape(q, k, lengths, Tile(FEW_ROWS, max(4, power_of_two(n_blocks)), 4, 2))
    _select_few[(batch * kv_heads, ceil_div(n_queries, FEW_ROWS))](
        q, k, lse, bits, n_queries, n_keys, past, dim**-0.5 * LOG2_E, COUNT=lengths.count, INITIAL=lengths.initial,
        LOCAL=lengths.local, SHAPE=shape, num_warps=4, num_stages=2,
    )  # fmt: skip
    return bits


def select(
    q: Tensor, k: Tensor, lse: Tensor, lengths: Selection, past: int, borders: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """The selection blocks of each query, int32 [B, Hkv, T, n], ascending, then -1 where there are fewer.

    q [B, T, H, D] and the compressed k [B, N, Hkv, D] are contiguous, lse [B, H, T] is that of the attention to
    them. The forced blocks count among the n; ties go to the lower block. In a packed row, whose `borders` are given,
    the numbers of blocks run on from one sequence to the next.
    """
    batch, n_queries, _, dim = q.shape
    kv_heads, n_keys, lists = k.shape[2], k.shape[1], batch * k.shape[2]
    n_blocks = n_tiles(past + n_queries, lengths.block, borders)
    per_block = lengths.block // lengths.stride
    keys_per_block = power_of_two(per_block)
    is_described = per_block == keys_per_block and describable(q, k)
    tile = tile or selection_tile(padded(dim), q.dtype, keys_per_block, is_described)
    shape = _shape(q, k, lengths, tile, borders, is_described)
    blocks = q.new_empty(batch, kv_heads, n_queries, lengths.count, dtype=torch.int32)
    tiles = n_tiles(n_queries, tile.rows, borders)
    each = max(1, SCORES // (lists * tile.rows * power_of_two(n_blocks)))
    for first_tile in range(0, tiles, each):
        n = min(each, tiles - first_tile)
        if borders is None:
            n_blocks = ceil_div(past + min(n_queries, (first_tile + n) * tile.rows), lengths.block)
        blocks_p = power_of_two(n_blocks)
        scores = q.new_empty(lists, n, tile.rows, blocks_p, dtype=torch.float32)
        given = q.new_empty(lists, n, tile.rows, ceil_div(blocks_p, tile.columns), dtype=torch.float32)
        parts = min(PARTS, ceil_div(blocks_p, tile.columns))
        _score[(lists * parts, n)](
            *_tiles(q, tile.rows, k, tile.columns * keys_per_block, is_described), lse, scores, given,
            *rows_of(borders, COMPRESSED), n_queries, n_keys, past, first_tile, dim**-0.5 * LOG2_E, n_sequences(borders),
            BLOCKS_P=blocks_p, PARTS=parts, SHAPE=shape, num_warps=tile.warps, num_stages=tile.stages,
            maxnreg=SCORE_REGISTERS if is_described else None,
        )  # fmt: skip
        _best[(n * tile.rows, lists)](
            scores, given, blocks, *rows_of(borders, BLOCKS), n_queries, past, first_tile, n_sequences(borders),
            COUNT=lengths.count, COUNT_P=power_of_two(lengths.count), INITIAL=lengths.initial, LOCAL=lengths.local,
            BLOCKS_P=blocks_p, SHAPE=shape, num_warps=max(1, min(16, blocks_p // 1024)),
        )  # fmt: skip
    return blocks


def _shape(
    q: Tensor,
    k: Tensor,
    lengths: Selection,
    tile: Tile,
    borders: Tensor | None = None,
    is_described: bool = False,
) -> Shape:
    heads, dim = q.shape[2:]
    per_block = lengths.block // lengths.stride
    return Shape(
        heads, heads // k.shape[2], dim, padded(dim), lengths.stride, lengths.length, per_block, power_of_two(per_block),
        lengths.length // lengths.stride - 1, borders is not None, is_described, tile.rows, tile.columns,
    )  # fmt: skip


def _tiles(q: Tensor, rows: int, k: Tensor, keys: int, is_described: bool) -> tuple[object, object]:
    return (tokens_descriptor(q, rows), tokens_descriptor(k, keys)) if is_described else (q, k)
