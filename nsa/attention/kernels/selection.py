"""Importance of selection blocks and the top n of them (Eq. 8 to 12) in one kernel: no score leaves the chip."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.band import LOG2_E, wide
from nsa.attention.kernels.tiles import Tile, padded, power_of_two, selection_tile
from nsa.config import AttentionConfig


@triton.jit(do_not_specialize=["N", "past", "n_blocks"])
def _select(
    Q, K, LSE, BLOCKS, T, N, past, n_blocks, scale_log2,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, STRIDE: tl.constexpr,
    LENGTH: tl.constexpr, PER_BLOCK: tl.constexpr, REACH: tl.constexpr, COUNT: tl.constexpr,
    COUNT_P: tl.constexpr, INITIAL: tl.constexpr, LOCAL: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """PER_BLOCK compressed keys begin in a selection block, and REACH others end in it."""
    kv_heads: tl.constexpr = H // GROUP
    first = (tl.num_programs(1) - 1 - tl.program_id(1)) * ROWS
    b, kv = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
    row, column, od = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, DP)
    live = first + row < T
    q_at = Q + ((b.to(tl.int64) * T + first) * H + kv * GROUP) * D + row[:, None] * (H * D) + od[None, :]
    lse_at = LSE + (b * H + kv * GROUP).to(tl.int64) * T + first + row
    k_at = K + (b.to(tl.int64) * N * kv_heads + kv) * D
    own = (past + first + row) // (PER_BLOCK * STRIDE)
    newest = past + tl.minimum(first + ROWS, T) - 1

    # The n best so far, in no order. Slots that must never be given away hold infinity.
    slot = tl.arange(0, COUNT_P)
    best = tl.where(slot < COUNT, float("-inf"), float("inf"))[None, :] + tl.zeros([ROWS, COUNT_P], tl.float32)
    chosen = (-1 - slot)[None, :] + tl.zeros([ROWS, COUNT_P], tl.int32)
    carried = tl.zeros([ROWS], tl.float32)  # what the last block's keys give to the next tile's first block
    for j0 in range(0, newest // (PER_BLOCK * STRIDE) + 1, COLUMNS):
        block = j0 + column
        importance = tl.zeros([ROWS, COLUMNS], tl.float32)
        spilled = tl.zeros([ROWS, COLUMNS], tl.float32)  # what each block's keys give to the block behind it
        for g in range(GROUP):
            q = tl.load(q_at + g * D, mask=live[:, None] & (od < D)[None, :], other=0.0)
            lse = tl.load(lse_at + wide(g) * T, mask=live, other=0.0)
            # One key of every block at a time: so each block adds in the same order, and equal blocks tie.
            for tap in tl.static_range(PER_BLOCK):
                key = block * PER_BLOCK + tap
                k = tl.load(
                    k_at + key[None, :].to(tl.int64) * (kv_heads * D) + od[:, None],
                    mask=(key < N)[None, :] & (od < D)[:, None], other=0.0,
                )  # fmt: skip
                s = tl.dot(q, k, input_precision="ieee")
                p = tl.exp2(s * scale_log2 - lse[:, None])
                seen = (key * STRIDE + LENGTH - 1)[None, :] <= (past + first + row)[:, None]
                p = tl.where(seen & (key < N)[None, :], p, 0.0)
                # The strides that the key shares with the block, and with the next one.
                if tap + REACH < PER_BLOCK:
                    importance += (REACH + 1) * p
                else:
                    importance += (PER_BLOCK - tap) * p
                    spilled += (tap + REACH + 1 - PER_BLOCK) * p
        if REACH > 0:
            before = tl.broadcast_to(tl.maximum(column - 1, 0)[None, :], [ROWS, COLUMNS])
            importance += tl.where((column == 0)[None, :], carried[:, None], tl.gather(spilled, before, 1))
            carried = tl.sum(tl.where((column == COLUMNS - 1)[None, :], spilled, 0.0), 1)
        forced = (block < INITIAL)[None, :] | (block[None, :] > own[:, None] - LOCAL)
        importance = tl.where(forced, float("inf"), importance)
        importance = tl.where(block[None, :] <= own[:, None], importance, float("-inf"))

        # Insert the best newcomer of each row until no row has one better than its worst.
        value, at = tl.max(importance, 1, return_indices=True, return_indices_tie_break_left=True)
        worst = tl.min(best, 1)
        while tl.max((value > worst).to(tl.int32), 0) > 0:
            better = (value > worst)[:, None]
            leaves = tl.max(tl.where(best == worst[:, None], chosen, -COUNT_P - 1), 1)
            out = better & (best == worst[:, None]) & (chosen == leaves[:, None])
            best = tl.where(out, value[:, None], best)
            chosen = tl.where(out, j0 + at[:, None], chosen)
            importance = tl.where(column[None, :] == at[:, None], float("-inf"), importance)
            value, at = tl.max(importance, 1, return_indices=True, return_indices_tie_break_left=True)
            worst = tl.min(best, 1)
    chosen = tl.sort(tl.where(chosen < 0, n_blocks, chosen), 1)
    chosen = tl.where(chosen == n_blocks, -1, chosen)
    blocks_at = BLOCKS + (tl.program_id(0).to(tl.int64) * T + first) * COUNT
    blocks_at += row[:, None] * COUNT + slot[None, :]
    tl.store(blocks_at, chosen, mask=live[:, None] & (slot < COUNT)[None, :])


def select(
    q: Tensor, k: Tensor, lse: Tensor, config: AttentionConfig, past: int, tile: Tile | None = None
) -> Tensor:
    """The selection blocks of each query, int32 [B, Hkv, T, n], ascending, then -1 where there are fewer.

    q [B, T, H, D] and the compressed k [B, N, Hkv, D] are contiguous, lse [B, H, T] is that of attention to
    them. The forced blocks count among the n; ties go to the lower block.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads, n_keys = k.shape[2], k.shape[1]
    n_blocks = triton.cdiv(past + n_queries, config.select_block)
    tile = tile or selection_tile(padded(dim), q.dtype, n_blocks)
    blocks = q.new_empty(batch, kv_heads, n_queries, config.select_count, dtype=torch.int32)
    grid = (batch * kv_heads, triton.cdiv(n_queries, tile.rows))
    _select[grid](
        q, k, lse, blocks, n_queries, n_keys, past, n_blocks, dim**-0.5 * LOG2_E,
        H=heads, GROUP=heads // kv_heads, D=dim, DP=padded(dim), STRIDE=config.compress_stride,
        LENGTH=config.compress_block, PER_BLOCK=config.select_block // config.compress_stride,
        REACH=config.compress_block // config.compress_stride - 1, COUNT=config.select_count,
        COUNT_P=power_of_two(config.select_count), INITIAL=config.initial_blocks, LOCAL=config.local_blocks,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return blocks
