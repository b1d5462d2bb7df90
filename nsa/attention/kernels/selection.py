"""Importance of selection blocks and the top n of them (Eq. 8 to 12) in one kernel: no score leaves the chip."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.band_kernels import wide
from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.packing import BLOCKS, COMPRESSED, n_sequences, n_tiles, rows_of, tile_of_slab
from nsa.attention.kernels.tiles import FEW_ROWS, LOG2_E, Tile, ceil_div, padded, power_of_two, selection_tile


class Selection(NamedTuple):
    """The lengths of `AttentionConfig` that selection depends on; blocks in tokens, the rest in blocks."""

    stride: int
    length: int
    block: int
    count: int
    initial: int
    local: int


@triton.jit
def _insert(best, chosen, importance, column, j0, COUNT_P: tl.constexpr, COLUMNS: tl.constexpr):
    """Insert the best newcomer of each row until no row has one better than its worst.

    That takes a few steps, as later tiles have few newcomers; sorting each tile took as long.
    """
    value, worst = tl.max(importance, 1), tl.min(best, 1)
    while tl.max((value > worst).to(tl.int32), 0) > 0:
        # Not return_indices, whose reduction of pairs takes five times the instructions.
        at = tl.min(tl.where(importance == value[:, None], column[None, :], COLUMNS), 1)
        leaves = tl.max(tl.where(best == worst[:, None], chosen, -COUNT_P - 1), 1)
        out = (value > worst)[:, None] & (best == worst[:, None]) & (chosen == leaves[:, None])
        best = tl.where(out, value[:, None], best)
        chosen = tl.where(out, j0 + at[:, None], chosen)
        importance = tl.where(column[None, :] == at[:, None], float("-inf"), importance)
        value, worst = tl.max(importance, 1), tl.min(best, 1)
    return best, chosen


@triton.jit
def _importance(
    q_at, k_at, lse_at, live, carried, j0, N, first_query, row_length, scale_log2,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, STRIDE: tl.constexpr,
    LENGTH: tl.constexpr, PER_BLOCK: tl.constexpr, PER_BLOCK_P: tl.constexpr, REACH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Eq. 8 to 10 for the blocks from j0 on: [ROWS, COLUMNS], and what the last of them gives to the next.

    PER_BLOCK compressed keys begin in a selection block, and REACH others end in it; `carried` is what those of
    the block before j0 give to it.
    """
    kv_heads: tl.constexpr = H // GROUP
    row, column, od = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DP)
    # One axis for the keys of all blocks of a tile: PER_BLOCK_P for each, of which PER_BLOCK are keys.
    KEYS: tl.constexpr = COLUMNS * PER_BLOCK_P
    each = tl.arange(0, KEYS)
    tap = tl.arange(0, PER_BLOCK_P)
    # How many strides a key shares with its block, and with the one behind it.
    shared = tl.maximum(tl.minimum(PER_BLOCK - tap, REACH + 1), 0).to(tl.float32)
    spills = tl.where(tap < PER_BLOCK, tl.maximum(tap + REACH + 1 - PER_BLOCK, 0), 0).to(tl.float32)
    key = (j0 + each // PER_BLOCK_P) * PER_BLOCK + each % PER_BLOCK_P
    is_key = (each % PER_BLOCK_P < PER_BLOCK) & (key < N)
    keys_at = k_at + wide(j0) * (PER_BLOCK * kv_heads * D)
    keys_at += (key - j0 * PER_BLOCK)[None, :] * (kv_heads * D) + od[:, None]
    # The keys stay in shared memory while the heads of the group pass by.
    k = tl.load(keys_at, mask=is_key[None, :] & (od < D)[:, None], other=0.0)
    p = tl.zeros([ROWS, KEYS], tl.float32)
    for g in range(GROUP):
        q = tl.load(q_at + g * D, mask=live[:, None] & (od < D)[None, :], other=0.0)
        lse = tl.load(lse_at + wide(g) * row_length, mask=live, other=0.0)
        s = tl.dot(q, k, input_precision="ieee")
        p += tl.exp2(s * scale_log2 - lse[:, None])
    last_end = ((j0 + COLUMNS) * PER_BLOCK - 1) * STRIDE + LENGTH - 1
    if PER_BLOCK != PER_BLOCK_P or last_end > first_query:
        seen = (key * STRIDE + LENGTH - 1)[None, :] <= (first_query + row)[:, None]
        p = tl.where(seen & is_key[None, :], p, 0.0)
    # Every block adds its keys in the same order, so blocks of equal keys tie bit for bit.
    p = tl.reshape(p, [ROWS, COLUMNS, PER_BLOCK_P])
    importance = tl.sum(p * shared[None, None, :], 2)
    if REACH > 0:
        spilled = tl.sum(p * spills[None, None, :], 2)
        before = tl.broadcast_to(tl.maximum(column - 1, 0)[None, :], [ROWS, COLUMNS])
        importance += tl.where((column == 0)[None, :], carried[:, None], tl.gather(spilled, before, 1))
        carried = tl.sum(tl.where((column == COLUMNS - 1)[None, :], spilled, 0.0), 1)
    return importance, carried


@Launcher
@triton.jit(do_not_specialize=["N", "past", "n_blocks", "n_sequences"])
def _select(
    Q, K, LSE, BLOCKS, TOKENS, FIRST_KEYS, FIRST_BLOCKS, T, N, past, n_blocks, scale_log2, n_sequences,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, STRIDE: tl.constexpr,
    LENGTH: tl.constexpr, PER_BLOCK: tl.constexpr, PER_BLOCK_P: tl.constexpr, REACH: tl.constexpr,
    COUNT: tl.constexpr, COUNT_P: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, PACKED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    kv_heads: tl.constexpr = H // GROUP
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    first, row_length = tile * ROWS, T
    first_key, first_block = tile * 0, tile * 0
    b, kv = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    if (
        PACKED
    ):  # from here on T is the end of the tile's sequence, and all blocks and keys count from its start
        first, start, T, first_key, keys_end = tile_of_slab(TOKENS, FIRST_KEYS, tile, n_sequences, ROWS)
        _, _, _, first_block, _ = tile_of_slab(TOKENS, FIRST_BLOCKS, tile, n_sequences, ROWS)
        N, past = keys_end - first_key, -start
        if first >= T:
            return
    row, column, od = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DP)
    live = first + row < T
    q_row = b.to(tl.int64) * row_length + first
    q_at = Q + (q_row * H + kv * GROUP) * D + row[:, None] * (H * D) + od[None, :]
    lse_at = LSE + (b * H + kv * GROUP).to(tl.int64) * row_length + first + row
    k_at = K + ((b.to(tl.int64) * N + first_key) * kv_heads + kv) * D
    own = (past + first + row) // (PER_BLOCK * STRIDE)
    newest = past + tl.minimum(first + ROWS, T) - 1

    # The n best so far, in no order. Slots that must never be given away hold infinity.
    slot = tl.arange(0, COUNT_P)
    best = tl.where(slot < COUNT, float("-inf"), float("inf"))[None, :] + tl.zeros(
        [ROWS, COUNT_P], tl.float32
    )
    chosen = (-1 - slot)[None, :] + tl.zeros([ROWS, COUNT_P], tl.int32)
    carried = tl.zeros([ROWS], tl.float32)  # what the last block's keys give to the next tile's first block
    for j0 in range(0, newest // (PER_BLOCK * STRIDE) + 1, COLUMNS):
        block = j0 + column
        importance, carried = _importance(
            q_at, k_at, lse_at, live, carried, j0, N, past + first, row_length, scale_log2, H, GROUP, D, DP, STRIDE,
            LENGTH, PER_BLOCK, PER_BLOCK_P, REACH, ROWS, COLUMNS,
        )  # fmt: skip
        forced = (block < INITIAL)[None, :] | (block[None, :] > own[:, None] - LOCAL)
        importance = tl.where(forced, float("inf"), importance)
        importance = tl.where(block[None, :] <= own[:, None], importance, float("-inf"))
        best, chosen = _insert(best, chosen, importance, column, j0, COUNT_P, COLUMNS)
    chosen = tl.sort(tl.where(chosen < 0, n_blocks, chosen), 1)
    chosen = tl.where(chosen == n_blocks, -1, chosen + first_block)
    blocks_at = BLOCKS + (tl.program_id(0).to(tl.int64) * row_length + first) * COUNT
    blocks_at += row[:, None] * COUNT + slot[None, :]
    tl.store(blocks_at, chosen, mask=live[:, None] & (slot < COUNT)[None, :])


@Launcher
@triton.jit(do_not_specialize=["N", "past"])
def _select_few(
    Q, K, LSE, BITS, T, N, past, scale_log2,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, STRIDE: tl.constexpr,
    LENGTH: tl.constexpr, PER_BLOCK: tl.constexpr, PER_BLOCK_P: tl.constexpr, REACH: tl.constexpr,
    COUNT: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """As `_select` where COLUMNS are all blocks: a block is selected if fewer than COUNT others are before it."""
    kv_heads: tl.constexpr = H // GROUP
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    b, kv = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    row, column, od = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DP)
    live = first + row < T
    q_row = b.to(tl.int64) * T + first
    q_at = Q + (q_row * H + kv * GROUP) * D + row[:, None] * (H * D) + od[None, :]
    lse_at = LSE + (b * H + kv * GROUP).to(tl.int64) * T + first + row
    k_at = K + (b.to(tl.int64) * N * kv_heads + kv) * D
    importance, _ = _importance(
        q_at, k_at, lse_at, live, tl.zeros([ROWS], tl.float32), 0, N, past + first, T, scale_log2, H, GROUP, D, DP,
        STRIDE, LENGTH, PER_BLOCK, PER_BLOCK_P, REACH, ROWS, COLUMNS,
    )  # fmt: skip
    own = (past + first + row) // (PER_BLOCK * STRIDE)
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
    batch, n_queries, heads, dim = q.shape
    kv_heads, n_keys = k.shape[2], k.shape[1]
    n_blocks, per_block = ceil_div(past + n_queries, lengths.block), lengths.block // lengths.stride
    bits = q.new_empty(batch, kv_heads, n_queries, dtype=torch.int32)
    _select_few[(batch * kv_heads, ceil_div(n_queries, FEW_ROWS))](
        q, k, lse, bits, n_queries, n_keys, past, dim**-0.5 * LOG2_E, H=heads, GROUP=heads // kv_heads, D=dim,
        DP=padded(dim), STRIDE=lengths.stride, LENGTH=lengths.length, PER_BLOCK=per_block,
        PER_BLOCK_P=power_of_two(per_block), REACH=lengths.length // lengths.stride - 1, COUNT=lengths.count,
        INITIAL=lengths.initial, LOCAL=lengths.local, ROWS=FEW_ROWS, COLUMNS=max(4, power_of_two(n_blocks)),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return bits


def select(
    q: Tensor, k: Tensor, lse: Tensor, lengths: Selection, past: int, borders: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """The selection blocks of each query, int32 [B, Hkv, T, n], ascending, then -1 where there are fewer.

    q [B, T, H, D] and the compressed k [B, N, Hkv, D] are contiguous, lse [B, H, T] is that of attention to
    them. The forced blocks count among the n; ties go to the lower block. The blocks of a packed row, whose
    `borders` are given, are numbered through.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads, n_keys = k.shape[2], k.shape[1]
    n_blocks = n_tiles(past + n_queries, lengths.block, borders)
    per_block = lengths.block // lengths.stride
    tile = tile or selection_tile(padded(dim), q.dtype, n_blocks, power_of_two(per_block))
    blocks = q.new_empty(batch, kv_heads, n_queries, lengths.count, dtype=torch.int32)
    grid = (batch * kv_heads, n_tiles(n_queries, tile.rows, borders))
    _select[grid](
        q, k, lse, blocks, *rows_of(borders, COMPRESSED), rows_of(borders, BLOCKS)[1], n_queries, n_keys, past, n_blocks,
        dim**-0.5 * LOG2_E, n_sequences(borders),
        H=heads, GROUP=heads // kv_heads, D=dim, DP=padded(dim), STRIDE=lengths.stride,
        LENGTH=lengths.length, PER_BLOCK=per_block,
        PER_BLOCK_P=power_of_two(per_block), REACH=lengths.length // lengths.stride - 1, COUNT=lengths.count,
        COUNT_P=power_of_two(lengths.count), INITIAL=lengths.initial, LOCAL=lengths.local, PACKED=borders is not None,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return blocks
