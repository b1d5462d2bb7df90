"""The tokens that selected each block of each head, ascending, list after list."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.tiles import ceil_div, power_of_two

# A program sorts the choices of neighbouring tokens on the chip; each such share of the tokens and each list have a
# count between them. Where there would be more counts than this, one sort of all choices takes less memory.
MOST_COUNTS = 2**24
SHARE = 512  # choices of a program, -1 for none among them
MOST_TOKENS = 128  # of a program, whose square the number of a choice has room for


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@Launcher
@triton.jit(do_not_specialize=["n_blocks"])
def _sort_shares(
    BLOCKS, SORTED, COUNTS, T, n_blocks, COUNT: tl.constexpr, COUNT_P: tl.constexpr, TOKENS: tl.constexpr
):
    """Sort each share's choices by block, then token, and count those of each list: COUNTS [1 + lists * shares].

    A choice is written as (block * TOKENS + token) * TOKENS + how many of its share are before it in its list; -1: none.
    """
    ENTRIES: tl.constexpr = TOKENS * COUNT_P
    entry = tl.arange(0, ENTRIES)
    token, slot = entry // COUNT_P, entry % COUNT_P
    row = tl.program_id(1).to(tl.int64)
    query = tl.program_id(0) * TOKENS + token
    at = BLOCKS + (row * T + query) * COUNT + slot
    block = tl.load(at, mask=(query < T) & (slot < COUNT), other=-1)
    NONE: tl.constexpr = 0x7FFFFFFF
    key = tl.sort(tl.where(block >= 0, block * TOKENS + token, NONE))
    block = key // TOKENS
    before = tl.gather(block, tl.maximum(entry - 1, 0), 0)
    following = tl.gather(block, tl.minimum(entry + 1, ENTRIES - 1), 0)
    begins = tl.where((entry == 0) | (block != before), entry, 0)
    place = entry - tl.associative_scan(begins, 0, _larger)
    last = (entry == ENTRIES - 1) | (block != following)
    share = row * tl.num_programs(0) + tl.program_id(0)
    tl.store(SORTED + share * ENTRIES + entry, tl.where(key == NONE, -1, key * TOKENS + place))
    count_at = COUNTS + 1 + (row * n_blocks + block) * tl.num_programs(0) + tl.program_id(0)
    tl.store(count_at, place + 1, mask=last & (key != NONE))


@Launcher
@triton.jit(do_not_specialize=["n_blocks"])
def _place(SORTED, BEFORE, TOKEN, n_blocks, TOKENS: tl.constexpr, ENTRIES: tl.constexpr):
    """Put each token where its list has come to, BEFORE [lists, shares], and its place in its share say."""
    entry = tl.arange(0, ENTRIES)
    row = tl.program_id(1).to(tl.int64)
    share = row * tl.num_programs(0) + tl.program_id(0)
    choice = tl.load(SORTED + share * ENTRIES + entry)
    is_one = choice >= 0
    place, token, block = choice % TOKENS, choice // TOKENS % TOKENS, choice // (TOKENS * TOKENS)
    before_at = BEFORE + (row * n_blocks + block) * tl.num_programs(0) + tl.program_id(0)
    before = tl.load(before_at, mask=is_one, other=0)
    tl.store(TOKEN + before + place, tl.program_id(0) * TOKENS + token, mask=is_one)


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
    batch, kv_heads, n_queries, count = blocks.shape
    rows, count_p = batch * kv_heads, power_of_two(count)
    tokens = max(1, min(MOST_TOKENS, SHARE // count_p))
    shares = ceil_div(n_queries, tokens)
    n_counts = rows * n_blocks * shares
    if n_counts > MOST_COUNTS or n_blocks * tokens**2 > 2**31:
        return _sorted(blocks, n_blocks)
    choices = blocks.new_empty(rows * shares * tokens * count_p)
    counts = blocks.new_zeros(1 + n_counts)  # a leading 0, so that their running sum is of those before
    _sort_shares[(shares, rows)](
        blocks, choices, counts, n_queries, n_blocks, COUNT=count, COUNT_P=count_p, TOKENS=tokens, num_warps=4
    )  # fmt: skip
    before = counts.cumsum(0, dtype=torch.int32)
    listed = blocks.new_empty(blocks.numel())
    _place[(shares, rows)](
        choices, before, listed, n_blocks, TOKENS=tokens, ENTRIES=tokens * count_p, num_warps=4
    )  # fmt: skip
    return listed, before[::shares].contiguous()


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
