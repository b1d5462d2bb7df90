"""The branches before and after their gates, forward and backward: which kernel serves which branch.

Lists are in the order of BRANCHES, with None for a branch that is not there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.kernels.band import (
    Forward,
    Lengths,
    Some,
    bands_dkv,
    bands_dq,
    bands_forward,
    chosen_band_forward,
)
from nsa.attention.kernels.choose import Selection, select, select_few
from nsa.attention.kernels.gates import gated_sum
from nsa.attention.kernels.gather import Unions, selected_dkv, selected_dq, selected_forward, unions
from nsa.attention.kernels.tiles import ceil_div, tokens_per_tile


class Chosen(NamedTuple):
    """The blocks that the queries selected."""

    blocks: Tensor  # [B, Hkv, T, n], or [B, Hkv, T] of bits (`selection.select_few`)
    union: Unions | None  # of blocks, if it was kept when attention to them was computed

    @property
    def by_bits(self) -> bool:
        return self.blocks.dim() == 3


def few_blocks(q: Tensor, selection: Selection, lengths: Lengths, borders: Tensor | None) -> bool:
    """Whether so many of the blocks are selected that attention under a mask is better than gathering them.

    With 2n blocks a query selects three quarters of what it sees, on average. Tiles of keys must not straddle blocks.
    """
    n_blocks = ceil_div(lengths.past + q.shape[1], lengths.block)
    return borders is None and n_blocks <= min(32, 2 * selection.count) and lengths.block % 64 == 0


def choose(
    q: Tensor, scoring: Tensor, lse: Tensor, selection: Selection, lengths: Lengths, borders: Tensor | None
) -> Tensor:
    """The `blocks` of Chosen; `lse` is that of attention to the compressed keys, `scoring`."""
    if few_blocks(q, selection, lengths, borders):
        return select_few(q, scoring, lse, selection, lengths.past)
    return select(q, scoring, lse, selection, lengths.past, borders)


def first_forward(
    q: Tensor, k: Some, v: Some, scoring: Tensor | None, lengths: Lengths, borders: Tensor | None
) -> tuple[Forward, Tensor | None]:
    """The branches that need no selection, and the lse by which one is made; `scoring` are its keys, if any.

    Without, every query selects all it may, which is a band.
    """
    if scoring is not None:
        k, v = (k[0], None, k[2]), (v[0], None, v[2])
    bands = Forward([None] * 3, [None] * 3)
    if any(x is not None for x in v):
        bands = bands_forward(q, k, v, lengths, borders)
    if scoring is None or v[0] is not None:
        return bands, bands.lses[0]
    alone = (scoring, None, None)
    return bands, bands_forward(q, alone, alone, lengths, borders).lses[0]


def chosen_forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, lengths: Lengths, borders: Tensor | None, others: Some,
    gates: Tensor | None,
) -> tuple[Tensor, Tensor, Chosen, Tensor | None]:  # fmt: skip
    """Output and lse of the selected branch, what its backward needs, and, given `gates`, the gated sum with the
    `others`' outputs."""
    if blocks.dim() == 3:
        out, lse, total = chosen_band_forward(q, k, v, blocks, lengths, others, gates)
        return out, lse, Chosen(blocks, None), total
    out, lse, union, total = selected_forward(
        q, k, v, blocks, lengths.block, lengths.past, borders, others, gates
    )
    return out, lse, Chosen(blocks, union), total


def branches_forward(
    q: Tensor, k: Some, v: Some, gates: Tensor | None, scoring: Tensor | None, selection: Selection | None,
    lengths: Lengths, borders: Tensor | None,
) -> tuple[Forward, Chosen | None, Tensor | None]:  # fmt: skip
    """All branches, what was selected, and, given `gates`, the gated sum."""
    bands, lse = first_forward(q, k, v, scoring, lengths, borders)
    chosen = total = None
    if selection is not None:
        blocks = choose(q, scoring, lse, selection, lengths, borders)
        bands.outs[1], bands.lses[1], chosen, total = chosen_forward(
            q, k[1], v[1], blocks, lengths, borders, bands.outs, gates
        )
    elif gates is not None:
        total = gated_sum(bands.outs, gates)
    return bands, chosen, total


def branches_backward(
    dout: Tensor, q: Tensor, k: Some, v: Some, stats: Tensor, chosen: Chosen | None, lengths: Lengths,
    borders: Tensor | None,
) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """The gradients of q, and of k and v of every branch; `stats` are those of `gates.gate_backward`."""
    by_lists = chosen is not None and not chosen.by_bits
    bits = chosen.blocks if chosen is not None and chosen.by_bits else None
    band_k, band_v = ((x[0], None, x[2]) if by_lists else x for x in (k, v))
    if all(x is None for x in band_v):
        dq, dk, dv = torch.empty_like(q), [None] * 3, [None] * 3
    else:
        dq = bands_dq(q, band_k, band_v, dout, stats, lengths, borders, bits)
        dk, dv = bands_dkv(q, band_k, band_v, dout, stats, lengths, borders, bits)
    if by_lists:
        blocks, union = chosen
        if union is None:
            union = unions(blocks, tokens_per_tile(q.shape[2] // blocks.shape[1], q.dtype), borders)
        add = any(x is not None for x in band_v)
        selected = (q, k[1], v[1], dout, stats)
        places = (lengths.block, lengths.past, borders)
        selected_dq(*selected, dq, union, blocks.shape[3], *places, add=add)
        dk[1], dv[1] = selected_dkv(*selected, blocks, *places)
    return dq, dk, dv
