"""Who selected a block: for every block of every head, the tokens that did, ascending, list after list."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.tiles import ceil_div, power_of_two

# Up to so many tokens every list looks at all of them: quadratic work, but few launches. Beyond it we sort.
LOOK_UNTIL = 16384
LISTS, TOKENS, TILE = 4, 1024, 128  # a program's lists and tokens, and how many tokens it takes at a time


@triton.jit
def _chose(BLOCKS, token, wanted, end, COUNT: tl.constexpr, COUNT_P: tl.constexpr):
    """int32 [tokens, lists], 1 where the token selected the block `wanted`."""
    slot = tl.arange(0, COUNT_P)
    mask = (token < end)[:, None] & (slot < COUNT)[None, :]
    blocks = tl.load(BLOCKS + token[:, None] * COUNT + slot[None, :], mask=mask, other=-1)
    return tl.max((blocks[:, :, None] == wanted[None, None, :]).to(tl.int32), 1)


@Launcher
@triton.jit(do_not_specialize=["n_blocks"])
def _count(
    BLOCKS, COUNTS, T, n_blocks, COUNT: tl.constexpr, COUNT_P: tl.constexpr, LISTS: tl.constexpr,
    TOKENS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """How many of a program's tokens each of its lists takes: COUNTS [lists, shares of tokens]."""
    wanted = tl.program_id(0) * LISTS + tl.arange(0, LISTS)
    begin = tl.program_id(1) * TOKENS
    end = tl.minimum(begin + TOKENS, T)
    BLOCKS += tl.program_id(2).to(tl.int64) * T * COUNT
    count = tl.zeros([LISTS], tl.int32)
    for first in range(begin, end, TILE):
        count += tl.sum(_chose(BLOCKS, first + tl.arange(0, TILE), wanted, end, COUNT, COUNT_P), 0)
    at = (tl.program_id(2) * n_blocks + wanted) * tl.num_programs(1) + tl.program_id(1)
    tl.store(COUNTS + at, count, mask=wanted < n_blocks)


@Launcher
@triton.jit(do_not_specialize=["n_blocks"])
def _place(
    BLOCKS, COUNTS, ENDS, TOKEN, STARTS, T, n_blocks, COUNT: tl.constexpr, COUNT_P: tl.constexpr,
    LISTS: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Put the tokens where the running sum of the counts, ENDS, says."""
    wanted = tl.program_id(0) * LISTS + tl.arange(0, LISTS)
    begin = tl.program_id(1) * TOKENS
    end = tl.minimum(begin + TOKENS, T)
    BLOCKS += tl.program_id(2).to(tl.int64) * T * COUNT
    number = tl.program_id(2) * n_blocks + wanted
    at = number * tl.num_programs(1) + tl.program_id(1)
    sum_after = tl.load(ENDS + at, mask=wanted < n_blocks, other=0)
    place = sum_after - tl.load(COUNTS + at, mask=wanted < n_blocks, other=0)
    if tl.program_id(1) == 0:
        tl.store(STARTS + number, place, mask=wanted < n_blocks)
    if (
        tl.program_id(1) == tl.num_programs(1) - 1
    ):  # the end of the last list; of others it is the next one's start
        is_last = number == tl.num_programs(2) * n_blocks - 1
        tl.store(STARTS + number + 1, sum_after, mask=is_last & (wanted < n_blocks))
    for first in range(begin, end, TILE):
        token = first + tl.arange(0, TILE)
        chose = _chose(BLOCKS, token, wanted, end, COUNT, COUNT_P)
        chose = tl.where((wanted < n_blocks)[None, :], chose, 0)
        rank = tl.cumsum(chose, 0) - chose
        tokens = tl.broadcast_to(token[:, None], [TILE, LISTS])
        tl.store(TOKEN + place[None, :] + rank, tokens, mask=chose != 0)
        place += tl.sum(chose, 0)


@Launcher
@triton.jit(do_not_specialize=["n_blocks", "n_lists"])
def _list_numbers(BLOCKS, NUMBER, per_head, n_blocks, n_lists, ENTRIES: tl.constexpr):
    """The list of each entry: n_lists for -1."""
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    at = tl.program_id(1).to(tl.int64) * per_head + entry
    block = tl.load(BLOCKS + at, mask=entry < per_head, other=-1)
    number = tl.where(block >= 0, tl.program_id(1) * n_blocks + block, n_lists)
    tl.store(NUMBER + at, number, mask=entry < per_head)


def lists_of_tokens(blocks: Tensor, n_blocks: int) -> tuple[Tensor, Tensor]:
    """The tokens that selected a block, list after list, and where each list starts, and the last ends; int32.

    `blocks` [B, Hkv, T, n] has each block of a token once. A list is one block of one head and row.
    """
    if blocks.shape[2] > LOOK_UNTIL:
        return _sorted(blocks, n_blocks)
    batch, kv_heads, n_queries, count = blocks.shape
    shares = ceil_div(n_queries, TOKENS)
    tokens = blocks.new_empty(blocks.numel())
    counts = blocks.new_empty(batch * kv_heads * n_blocks * shares)
    starts = blocks.new_empty(batch * kv_heads * n_blocks + 1)
    grid = (ceil_div(n_blocks, LISTS), shares, batch * kv_heads)
    constants = {
        "COUNT": count, "COUNT_P": power_of_two(count), "LISTS": LISTS, "TOKENS": TOKENS, "TILE": TILE,
        "num_warps": 4,
    }  # fmt: skip
    _count[grid](blocks, counts, n_queries, n_blocks, **constants)
    ends = counts.cumsum(0, dtype=torch.int32)
    _place[grid](blocks, counts, ends, tokens, starts, n_queries, n_blocks, **constants)
    return tokens, starts


def _sorted(blocks: Tensor, n_blocks: int) -> tuple[Tensor, Tensor]:
    """The same by a stable sort; entries of -1 come last, in no list."""
    batch, kv_heads, n_queries, count = blocks.shape
    n_lists, per_head = batch * kv_heads * n_blocks, n_queries * count
    number = torch.empty_like(blocks).flatten()
    _list_numbers[(ceil_div(per_head, 1024), batch * kv_heads)](
        blocks, number, per_head, n_blocks, n_lists, ENTRIES=1024, num_warps=4
    )
    number, entries = number.sort(stable=True)
    lists = torch.arange(n_lists + 1, device=blocks.device, dtype=torch.int32)
    tokens = entries.remainder_(per_head).div_(count, rounding_mode="floor").to(torch.int32)
    return tokens, torch.searchsorted(number, lists, out_int32=True)
