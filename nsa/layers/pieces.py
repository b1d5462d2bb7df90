"""The attention of a rank that holds some spans of a packed row: in pieces, each a call that every backend answers."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.blocks import n_compress_slots, packed_borders
from nsa.attention.inputs import BranchKV
from nsa.config import AttentionConfig
from nsa.context import Span


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Neighbouring queries of a rank and the keys that they see: of one sequence that began before, or of whole sequences."""

    local: slice  # the queries, among the rank's tokens
    start: int  # the first token of the row that they may see
    end: int  # behind the last query
    past_length: int  # tokens between the start and the first query
    first_slot: int  # of the compressed keys from the start on
    n_slots: int
    borders: tuple[int, ...] | None  # of whole sequences, from the start; None: one sequence

    def keys_seen(self, kv: BranchKV, config: AttentionConfig) -> BranchKV:
        """The keys, or values, of the whole row that the queries see, as `nsa_attention` takes them."""
        compressed, selected, sliding = kv
        if compressed is not None:
            compressed = compressed[:, self.first_slot : self.first_slot + self.n_slots]
            if self.borders is not None:  # packed rows have as many slots as they may need
                room = n_compress_slots(config, self.end - self.start, packed=True) - self.n_slots
                compressed = F.pad(compressed, (0, 0, 0, 0, 0, room))
        oldest = (
            self.start
            if self.borders is not None
            else self.start + max(0, self.past_length + 1 - config.window)
        )
        return BranchKV(
            compressed,
            None if selected is None else selected[:, self.start : self.end],
            None if sliding is None else sliding[:, oldest : self.end],
        )

    def cu_seqlens(self, device: torch.device) -> Tensor | None:
        """The borders as `nsa_attention` takes them, int32."""
        return None if self.borders is None else torch.tensor(self.borders, dtype=torch.int32, device=device)


def pieces_of(
    spans: list[Span], n_tokens: int, cu_seqlens: Tensor | None, config: AttentionConfig
) -> Iterator[Piece]:
    """The pieces of a rank's spans of a row of n_tokens, in the order of its tokens; reads `cu_seqlens`, [N + 1]."""
    if cu_seqlens is None:
        tokens, slots = [0, n_tokens], [0]
    else:
        tokens, slots, _ = packed_borders(config, n_tokens, cu_seqlens).tolist()
    for span in spans:
        yield from _pieces(span, tokens, slots, config, packed=cu_seqlens is not None)


def _pieces(
    span: Span, tokens: list[int], slots: list[int], config: AttentionConfig, *, packed: bool
) -> Iterator[Piece]:
    """The rest of the sequence that the span begins in, then those that begin in it."""
    begun = bisect.bisect_right(tokens, span.past, hi=len(tokens) - 1) - 1
    first_whole = begun if packed and tokens[begun] == span.past else begun + 1
    if first_whole > begun:
        start, rest_end = tokens[begun], min(span.end, tokens[first_whole])
        yield Piece(
            local=_local(span, span.past, rest_end), start=start, end=rest_end, past_length=span.past - start,
            first_slot=slots[begun], n_slots=n_compress_slots(config, rest_end - start, packed=False), borders=None,
        )  # fmt: skip
    start = tokens[first_whole]
    if start >= span.end:
        return
    last = bisect.bisect_left(tokens, span.end) - 1  # the sequence that the span ends in
    n_slots = (
        slots[last] - slots[first_whole] + n_compress_slots(config, span.end - tokens[last], packed=False)
    )
    borders = (*(token - start for token in tokens[first_whole : last + 1]), span.end - start)
    yield Piece(
        local=_local(span, start, span.end), start=start, end=span.end, past_length=0,
        first_slot=slots[first_whole], n_slots=n_slots, borders=borders,
    )  # fmt: skip


def _local(span: Span, first: int, end: int) -> slice:
    return slice(span.local.start + first - span.past, span.local.start + end - span.past)
