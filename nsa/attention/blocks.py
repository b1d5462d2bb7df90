"""The positions of compression and selection blocks in a row of tokens, packed or not: index tensors, no data read.

Blocks have *slots*. A row of one sequence has exactly as many slots as blocks. How many blocks packed
sequences have is known only to the device, so they get a static upper bound, and the unused slots begin
after the last token, where no query sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.config import AttentionConfig


@dataclass(frozen=True, kw_only=True)
class BlockLayout:
    """Token and slot indices (int64) for T queries, which are the last T of S tokens."""

    config: AttentionConfig
    n_tokens: int  # S
    query: Tensor  # [T] token index of each query
    query_start: Tensor  # [T] first token of the query's sequence
    compress_first: Tensor  # [NC] first token of each compression block
    select_first: Tensor  # [NS] first token of each selection block
    select_block_of: Tensor  # [S] slot of the selection block that holds each token
    stencil_slots: Tensor  # [NS, taps] compression slots that overlap each selection block; NC where none

    def sees_compressed(self) -> Tensor:
        """[T, NC]: the block lies in the query's sequence and wholly in its past (Eq. 7)."""
        last = self.compress_first + self.config.compress_block - 1
        return self._in_sequence(self.compress_first) & (last <= self.query[:, None])

    def may_select(self) -> Tensor:
        """[T, NS]: the block lies in the query's sequence and starts at or before the query."""
        return self._in_sequence(self.select_first) & (self.select_first <= self.query[:, None])

    def must_select(self) -> Tensor:
        """[T, NS]: the initial blocks of the sequence, and the local ones that end with the query's own."""
        blocks = torch.arange(len(self.select_first), device=self.query.device)
        initial = blocks - self.select_block_of[self.query_start][:, None] < self.config.initial_blocks
        local = self.select_block_of[self.query][:, None] - blocks < self.config.local_blocks
        return self.may_select() & (initial | local)

    def of_query(self, index: int) -> BlockLayout:
        """The layout for one of the queries."""
        one = slice(index, index + 1)
        return replace(self, query=self.query[one], query_start=self.query_start[one])

    def _in_sequence(self, first: Tensor) -> Tensor:
        return first >= self.query_start[:, None]


def block_layout(
    config: AttentionConfig,
    n_queries: int,
    device: torch.device,
    cu_seqlens: Tensor | None = None,
    past_length: int = 0,
) -> BlockLayout:
    """Lay out the blocks of `past_length + n_queries` tokens.

    `cu_seqlens` is int [N+1], the borders of N packed sequences; tokens behind the last border are a sequence
    of their own. Never synchronises with the device.
    """
    n_tokens = past_length + n_queries
    borders = sequence_borders(n_tokens, device, cu_seqlens)
    starts, lengths = borders[:-1], borders.diff()
    tokens = torch.arange(n_tokens, device=device)
    sequence = sequence_of(tokens, borders)

    compress = _compress_slots(config, borders, n_tokens, packed=cu_seqlens is not None)
    n_selected = -(-n_tokens // config.select_block)
    if cu_seqlens is not None:
        n_selected = n_tokens // config.select_block + len(lengths)  # >= the sum of every sequence's ceiling
    select = _place(borders, -(-lengths // config.select_block), config.select_block, n_selected)
    return BlockLayout(
        config=config,
        n_tokens=n_tokens,
        query=tokens[past_length:],
        query_start=starts[sequence[past_length:]],
        compress_first=compress.first,
        select_first=select.first,
        select_block_of=select.offset[sequence] + (tokens - starts[sequence]) // config.select_block,
        stencil_slots=_stencil_slots(config, starts, compress, select),
    )


def sequence_borders(n_tokens: int, device: torch.device, cu_seqlens: Tensor | None = None) -> Tensor:
    """[N+1] (packed: [N+2]) int64: the borders of the sequences, from 0 to n_tokens."""
    if cu_seqlens is None:
        return torch.arange(2, device=device) * n_tokens  # not torch.tensor, which would wait for a copy
    end = torch.full((1,), n_tokens, device=device)
    return torch.cat([cu_seqlens.to(device=device, dtype=torch.int64), end])


def sequence_of(tokens: Tensor, borders: Tensor) -> Tensor:
    """int64, as `tokens`: the number of the sequence that holds each; `borders` as from `sequence_borders`."""
    # In all of the borders, as compilers of torch before 2.13 searched the storage of a slice from its beginning.
    return torch.searchsorted(borders, tokens, right=True) - 1


def packed_borders(config: AttentionConfig, n_tokens: int, cu_seqlens: Tensor) -> Tensor:
    """int32 [3, N+2]: where each packed sequence starts, and the last ends, in tokens, in compression slots and
    in selection blocks; numbered as in `block_layout`."""
    borders = sequence_borders(n_tokens, cu_seqlens.device, cu_seqlens)
    lengths = borders.diff()
    compressed = ((lengths - config.compress_block) // config.compress_stride + 1).clamp(min=0)
    counts = torch.stack([lengths, compressed, -(-lengths // config.select_block)])
    return F.pad(counts.cumsum(1), (1, 0)).to(torch.int32)


def n_compress_slots(config: AttentionConfig, n_tokens: int, *, packed: bool) -> int:
    """NC: exact for one sequence, an upper bound for packed ones (L tokens have at most L // d blocks)."""
    if packed:
        return n_tokens // config.compress_stride
    return max(0, (n_tokens - config.compress_block) // config.compress_stride + 1)


def compress_tokens(
    config: AttentionConfig, n_tokens: int, device: torch.device, cu_seqlens: Tensor | None = None
) -> Tensor:
    """[NC, l] int64: the tokens of every compression block; unused slots repeat the last token."""
    borders = sequence_borders(n_tokens, device, cu_seqlens)
    slots = _compress_slots(config, borders, n_tokens, packed=cu_seqlens is not None)
    within = torch.arange(config.compress_block, device=device)
    return (slots.first[:, None] + within).clamp(max=max(0, n_tokens - 1))


def stencil(config: AttentionConfig) -> list[tuple[int, int]]:
    """Eq. 9 as (offset, weight): block j of selection sums weight * p_cmp[j * l'/d + offset], both 0-based.

    The paper's double sum counts, for each compression block, the strides that it shares with the selection
    block. For l=32, d=16, l'=64 that is weights 1, 2, 2, 2, 1 on offsets -1 .. 3.
    """
    in_compress = config.compress_block // config.compress_stride
    in_select = config.select_block // config.compress_stride
    offsets = range(1 - in_compress, in_select)
    return [(o, min(o + in_compress, in_select) - max(o, 0)) for o in offsets]


class _Slots(NamedTuple):
    """Blocks of N sequences laid out one sequence after another."""

    first: Tensor  # [slots] first token
    sequence: Tensor  # [slots] its sequence
    count: Tensor  # [N] blocks of each sequence
    offset: Tensor  # [N] slot of each sequence's first block


def _compress_slots(config: AttentionConfig, borders: Tensor, n_tokens: int, *, packed: bool) -> _Slots:
    count = ((borders.diff() - config.compress_block) // config.compress_stride + 1).clamp(min=0)
    return _place(borders, count, config.compress_stride, n_compress_slots(config, n_tokens, packed=packed))


def _place(borders: Tensor, count: Tensor, stride: int, n_slots: int) -> _Slots:
    """Give every block a slot; unused slots begin at the end of the row, in the last sequence."""
    ends = count.cumsum(0)
    slot = torch.arange(n_slots, device=borders.device)
    sequence = torch.searchsorted(ends, slot, right=True)
    used = sequence < len(count)
    sequence = sequence.clamp(max=len(count) - 1)
    first = borders[sequence] + (slot - (ends - count)[sequence]) * stride
    return _Slots(torch.where(used, first, borders[-1]), sequence, count, ends - count)


def _stencil_slots(config: AttentionConfig, starts: Tensor, compress: _Slots, select: _Slots) -> Tensor:
    """[NS, taps]: the compression slot under each tap of the stencil, NC where the sequence has none."""
    lowest, highest = stencil(config)[0][0], stencil(config)[-1][0]
    offsets = torch.arange(lowest, highest + 1, device=starts.device)
    stride = (select.first - starts[select.sequence]) // config.compress_stride
    block = stride[:, None] + offsets  # counted within the sequence
    slot = compress.offset[select.sequence][:, None] + block
    exists = (block >= 0) & (block < compress.count[select.sequence][:, None])
    return torch.where(exists, slot, len(compress.first))
