

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.band import LOG2_E, wide
from nsa.attention.kernels.tiles import Tile, ceil_div, padded, power_of_two, selection_tile


class Selection(NamedTuple):
    """The lengths of `AttentionConfig` that selection depends on; blocks in tokens, the rest in blocks."""

    stride: int
    length: int
    block: int
    count: int
    initial: int
    local: int


TAPS = tl.constexpr(4)


@triton.jit
def _keys(
    K, j0, TAP: tl.constexpr, N, KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    PER_BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Key TAP of each of the blocks from j0 on, [DP, COLUMNS]; `K` is at the first block."""
    key, od = tl.arange(0, COLUMNS) * PER_BLOCK + TAP, tl.arange(0, DP)
    mask = (j0 * PER_BLOCK + key < N)[None, :] & (od < D)[:, None]
    return tl.load(K + key[None, :] * (KV_HEADS * D) + od[:, None], mask=mask, other=0.0)


@triton.jit
def _score(
    importance, spilled, q, k, lse, block, token, N, scale_log2, TAP: tl.constexpr, STRIDE: tl.constexpr,
    LENGTH: tl.constexpr, PER_BLOCK: tl.constexpr, REACH: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the probability of key TAP of each block, as often as it shares a stride with the block."""
    if TAP < PER_BLOCK:
        s = tl.dot(q, k, input_precision="ieee")
        p = tl.exp2(s * scale_log2 - lse[:, None])
        if MASKED:
            key = block * PER_BLOCK + TAP
            seen = (key * STRIDE + LENGTH - 1)[None, :] <= token[:, None]
            p = tl.where(seen & (key < N)[None, :], p, 0.0)
        if TAP + REACH < PER_BLOCK:
            importance += (REACH + 1) * p
        else:
            importance += (PER_BLOCK - TAP) * p
            spilled += (TAP + REACH + 1 - PER_BLOCK) * p
    return importance, spilled


@triton.jit
def _score_heads(
    importance, spilled, k0, k1, k2, k3, q_at, lse_at, live, block, token, T, N, scale_log2,
    TAP: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, STRIDE: tl.constexpr,
    LENGTH: tl.constexpr, PER_BLOCK: tl.constexpr, REACH: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add what up to four keys of every block give, for all heads of the group.

    Every block adds its keys in the same order, so blocks of equal keys tie bit for bit.
    """
    od = tl.arange(0, DP)
    for g in range(GROUP):
        q = tl.load(q_at + g * D, mask=live[:, None] & (od < D)[None, :], other=0.0)
        lse = tl.load(lse_at + wide(g) * T, mask=live, other=0.0)
        importance, spilled = _score(
            importance, spilled, q, k0, lse, block, token, N, scale_log2, TAP, STRIDE, LENGTH, PER_BLOCK,
            REACH, MASKED,
        )  # fmt: skip
        importance, spilled = _score(
            importance, spilled, q, k1, lse, block, token, N, scale_log2, TAP + 1, STRIDE, LENGTH, PER_BLOCK,
            REACH, MASKED,
        )  # fmt: skip
        importance, spilled = _score(
            importance, spilled, q, k2, lse, block, token, N, scale_log2, TAP + 2, STRIDE, LENGTH, PER_BLOCK,
            REACH, MASKED,
        )  # fmt: skip
        importance, spilled = _score(
            importance, spilled, q, k3, lse, block, token, N, scale_log2, TAP + 3, STRIDE, LENGTH, PER_BLOCK,
            REACH, MASKED,
        )  # fmt: skip
    return importance, spilled


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
    best = tl.where(slot < COUNT, float("-inf"), float("inf"))[None, :] + tl.zeros(
        [ROWS, COUNT_P], tl.float32
    )
    chosen = (-1 - slot)[None, :] + tl.zeros([ROWS, COUNT_P], tl.int32)
    carried = tl.zeros([ROWS], tl.float32)  # what the last block's keys give to the next tile's first block
    for j0 in range(0, newest // (PER_BLOCK * STRIDE) + 1, COLUMNS):
        block = j0 + column
        importance = tl.zeros([ROWS, COLUMNS], tl.float32)
        spilled = tl.zeros([ROWS, COLUMNS], tl.float32)  # what each block's keys give to the block behind it
        keys_at = k_at + wide(j0) * (PER_BLOCK * kv_heads * D)
        # Four keys of every block stay in shared memory while the heads of the group pass by.
        for tap in tl.static_range(0, PER_BLOCK, TAPS):
            k0 = _keys(keys_at, j0, tap, N, kv_heads, D, DP, PER_BLOCK, COLUMNS)
            k1 = (
                k0
                if tap + 1 >= PER_BLOCK
                else _keys(keys_at, j0, tap + 1, N, kv_heads, D, DP, PER_BLOCK, COLUMNS)
            )
            k2 = (
                k0
                if tap + 2 >= PER_BLOCK
                else _keys(keys_at, j0, tap + 2, N, kv_heads, D, DP, PER_BLOCK, COLUMNS)
            )
            k3 = (
                k0
                if tap + 3 >= PER_BLOCK
                else _keys(keys_at, j0, tap + 3, N, kv_heads, D, DP, PER_BLOCK, COLUMNS)
            )
            if ((j0 + COLUMNS) * PER_BLOCK - 1) * STRIDE + LENGTH - 1 <= past + first:
                importance, spilled = _score_heads(
                    importance, spilled, k0, k1, k2, k3, q_at, lse_at, live, block, past + first + row, T, N,
                    scale_log2, tap, GROUP, D, DP, STRIDE, LENGTH, PER_BLOCK, REACH, False,
                )  # fmt: skip
            else:
                importance, spilled = _score_heads(
                    importance, spilled, k0, k1, k2, k3, q_at, lse_at, live, block, past + first + row, T, N,
                    scale_log2, tap, GROUP, D, DP, STRIDE, LENGTH, PER_BLOCK, REACH, True,
                )  # fmt: skip
        if REACH > 0:
            before = tl.broadcast_to(tl.maximum(column - 1, 0)[None, :], [ROWS, COLUMNS])
            importance += tl.where((column == 0)[None, :], carried[:, None], tl.gather(spilled, before, 1))
            carried = tl.sum(tl.where((column == COLUMNS - 1)[None, :], spilled, 0.0), 1)
        forced = (block < INITIAL)[None, :] | (block[None, :] > own[:, None] - LOCAL)
        importance = tl.where(forced, float("inf"), importance)
        importance = tl.where(block[None, :] <= own[:, None], importance, float("-inf"))

        # Insert the best newcomer of each row until no row has one better than its worst. That takes a few
        # steps, as later tiles have few newcomers; sorting each tile took as long.
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
    chosen = tl.sort(tl.where(chosen < 0, n_blocks, chosen), 1)
    chosen = tl.where(chosen == n_blocks, -1, chosen)
    blocks_at = BLOCKS + (tl.program_id(0).to(tl.int64) * T + first) * COUNT
    blocks_at += row[:, None] * COUNT + slot[None, :]
    tl.store(blocks_at, chosen, mask=live[:, None] & (slot < COUNT)[None, :])


def select(
    q: Tensor, k: Tensor, lse: Tensor, lengths: Selection, past: int, tile: Tile | None = None
) -> Tensor:
    """The selection blocks of each query, int32 [B, Hkv, T, n], ascending, then -1 where there are fewer.

    q [B, T, H, D] and the compressed k [B, N, Hkv, D] are contiguous, lse [B, H, T] is that of attention to
    them. The forced blocks count among the n; ties go to the lower block.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads, n_keys = k.shape[2], k.shape[1]
    n_blocks = ceil_div(past + n_queries, lengths.block)
    tile = tile or selection_tile(padded(dim), q.dtype, n_blocks)
    blocks = q.new_empty(batch, kv_heads, n_queries, lengths.count, dtype=torch.int32)
    grid = (batch * kv_heads, ceil_div(n_queries, tile.rows))
    _select[grid](
        q, k, lse, blocks, n_queries, n_keys, past, n_blocks, dim**-0.5 * LOG2_E,
        H=heads, GROUP=heads // kv_heads, D=dim, DP=padded(dim), STRIDE=lengths.stride,
        LENGTH=lengths.length, PER_BLOCK=lengths.block // lengths.stride,
        REACH=lengths.length // lengths.stride - 1, COUNT=lengths.count,
        COUNT_P=power_of_two(lengths.count), INITIAL=lengths.initial, LOCAL=lengths.local,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return blocks
