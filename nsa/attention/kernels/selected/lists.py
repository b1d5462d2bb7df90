"""The inverse of a selection: for each block of each head a list of the tokens that selected it, ascending."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.launch import Launcher
from nsa.attention.kernels.tiles import ceil_div, power_of_two

# A program sorts the choices of neighbouring tokens, a share, on the chip; there is a count for every list and share.
# Longer rows are cut into chunks of shares, so that no more counts than this, 64 MiB, are in memory at once.
MOST_COUNTS = 2**24
SHARE = 512  # choices of a program, those of -1 included
MOST_TOKENS = 128  # of a share


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@Launcher
@triton.jit(do_not_specialize=["n_blocks"])
def _sort_shares(
    BLOCKS, SORTED, COUNTS, T, n_blocks, COUNT: tl.constexpr, COUNT_P: tl.constexpr, TOKENS: tl.constexpr
):
    """Sort each share's choices by block, then token, and count those of each list: COUNTS [1 + lists * shares].

    A choice is encoded as (block * TOKENS + token) * TOKENS + the number of earlier ones of its share in the same list; -1: none.
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
@triton.jit(do_not_specialize=["n_blocks", "first_token"])
def _place(SORTED, BEFORE, TOKEN, n_blocks, first_token, TOKENS: tl.constexpr, ENTRIES: tl.constexpr):
    """Put each token into its list, after those of earlier shares, BEFORE [lists, shares], and earlier ones of its share."""
    entry = tl.arange(0, ENTRIES)
    row = tl.program_id(1).to(tl.int64)
    share = row * tl.num_programs(0) + tl.program_id(0)
    choice = tl.load(SORTED + share * ENTRIES + entry)
    is_one = choice >= 0
    place, token, block = choice % TOKENS, choice // TOKENS % TOKENS, choice // (TOKENS * TOKENS)
    before_at = BEFORE + (row * n_blocks + block) * tl.num_programs(0) + tl.program_id(0)
    before = tl.load(before_at, mask=is_one, other=0)
    tl.store(TOKEN + before + place, first_token + tl.program_id(0) * TOKENS + token, mask=is_one)


def lists_of_tokens(blocks: Tensor, n_blocks: int) -> tuple[Tensor, Tensor]:
    """The tokens that selected each block, list after list, and where each list starts, and the last ends; int32.

    `blocks` [B, Hkv, T, n] has each block of a token once, or -1. A list is one block of one head and row.
    """
    batch, kv_heads, _, count = blocks.shape
    n_lists = batch * kv_heads * n_blocks
    tokens = max(1, min(MOST_TOKENS, SHARE // power_of_two(count)))
    while n_blocks * tokens**2 > 2**31:  # `_sort_shares` writes a choice as one number
        tokens //= 2
    chunks = blocks.split(max(1, MOST_COUNTS // n_lists) * tokens, dim=2)
    listed = blocks.new_empty(blocks.numel())
    if len(chunks) == 1:
        choices, before = _sort(blocks, n_blocks, tokens)
        _put(choices, before, listed, n_blocks, tokens, 0)
        return listed, before[:: choices.shape[1]].contiguous()
    # Twice over the chunks: what each list has of every chunk, then the chunks' tokens to their places.
    sizes = blocks.new_zeros(n_lists * len(chunks) + 1)
    for i, chunk in enumerate(chunks):
        choices, before = _sort(chunk, n_blocks, tokens)
        sizes[1 + i :: len(chunks)] = before[:: choices.shape[1]].diff()
    starts = sizes.cumsum(0, dtype=torch.int32)
    for i, chunk in enumerate(chunks):
        choices, before = _sort(chunk, n_blocks, tokens)
        shares = choices.shape[1]
        moved = starts[i :: len(chunks)][:n_lists] - before[:-1:shares]
        before[:-1].view(n_lists, shares).add_(moved[:, None])
        _put(choices, before, listed, n_blocks, tokens, i * chunks[0].shape[2])
    return listed, starts[:: len(chunks)].contiguous()


def _sort(blocks: Tensor, n_blocks: int, tokens: int) -> tuple[Tensor, Tensor]:
    """The sorted choices of each share [rows, shares, choices], and for each list and share the number of entries before."""
    batch, kv_heads, n_queries, count = blocks.shape
    rows, shares, count_p = batch * kv_heads, ceil_div(n_queries, tokens), power_of_two(count)
    choices = blocks.new_empty(rows, shares, tokens * count_p)
    counts = blocks.new_zeros(1 + rows * n_blocks * shares)  # a leading 0: the sum is of those before
    _sort_shares[(shares, rows)](
        blocks.contiguous(), choices, counts, n_queries, n_blocks, COUNT=count, COUNT_P=count_p, TOKENS=tokens,
        num_warps=4,
    )  # fmt: skip
    return choices, counts.cumsum(0, dtype=torch.int32)


def _put(
    choices: Tensor, before: Tensor, listed: Tensor, n_blocks: int, tokens: int, first_token: int
) -> None:
    rows, shares, entries = choices.shape
    _place[(shares, rows)](
        choices, before, listed, n_blocks, first_token, TOKENS=tokens, ENTRIES=entries, num_warps=4
    )  # fmt: skip
