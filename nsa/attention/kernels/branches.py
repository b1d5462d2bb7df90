"""The branches before their gates, forward and backward: which kernel serves which branch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.inputs import BRANCHES
from nsa.attention.kernels.band import Band, band_dkv, band_dq, band_forward
from nsa.attention.kernels.packing import Packing
from nsa.attention.kernels.selected import selected_dkv, selected_dq, selected_forward

TOKENS, COMPRESSED, BLOCKS = range(3)  # the rows of `blocks.packed_borders`


class Lengths(NamedTuple):
    """Those of `AttentionConfig` that attention depends on, and the tokens before the queries; all in tokens."""

    stride: int
    length: int
    block: int
    window: int
    past: int


def compressed_forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, borders: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, Dv] and lse [B, H, T] of the compressed branch; `borders` are those of a packed row."""
    return band_forward(q, k, v, compressed_band(lengths), packing(borders, COMPRESSED))


def chosen_forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor | None, lengths: Lengths, borders: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same of the selected branch. No `blocks` means that every query selects all it may."""
    if blocks is None:
        return band_forward(q, k, v, dense_band(lengths), packing(borders, TOKENS))
    return selected_forward(q, k, v, blocks, lengths.block, lengths.past, packing(borders, BLOCKS))


def sliding_forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, borders: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same of the sliding branch."""
    return band_forward(q, k, v, sliding_band(q, k, lengths), packing(borders, TOKENS))


def branches_backward(
    dout: Tensor,
    q: Tensor,
    k: list[Tensor | None],
    v: list[Tensor | None],
    stats: Tensor,
    blocks: Tensor | None,
    lengths: Lengths,
    borders: Tensor | None,
) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
    """The gradients of q, and of k and v of every branch; None for a branch that is not there.

    Lists are in the order of BRANCHES; `stats` are those of `gates.gate_backward`.
    """
    dq = torch.empty_like(q)
    dk: list[Tensor | None] = [None] * 3
    dv: list[Tensor | None] = [None] * 3
    add = False
    for i, branch in enumerate(BRANCHES):
        if v[i] is None:
            continue
        inputs = (q, k[i], v[i], dout, stats[0, i], stats[1, i])
        if branch == "selected" and blocks is not None:
            chosen = (blocks, lengths.block, lengths.past, packing(borders, BLOCKS))
            selected_dq(*inputs, dq, *chosen, add=add)
            dk[i], dv[i] = selected_dkv(*inputs, *chosen)
        else:
            if branch == "compressed":
                band, rows = compressed_band(lengths), COMPRESSED
            else:
                band = dense_band(lengths) if branch == "selected" else sliding_band(q, k[i], lengths)
                rows = TOKENS
            band_dq(*inputs, dq, band, packing(borders, rows), add=add)
            dk[i], dv[i] = band_dkv(*inputs, band, packing(borders, rows))
        add = True
    return dq, dk, dv


def compressed_band(lengths: Lengths) -> Band:
    """The compressed keys that end in a query's past (Eq. 7)."""
    return Band(stride=lengths.stride, length=lengths.length, window=0, past=lengths.past, offset=0)


def sliding_band(q: Tensor, k: Tensor, lengths: Lengths) -> Band:
    """The last `window` tokens; k may hold the newest tokens only, as a cache does."""
    offset = lengths.past + q.shape[1] - k.shape[1]
    return Band(stride=1, length=1, window=lengths.window, past=lengths.past, offset=offset)


def dense_band(lengths: Lengths) -> Band:
    """All tokens of the past: what selection gives while it may select every block."""
    return Band(stride=1, length=1, window=0, past=lengths.past, offset=0)


def packing(borders: Tensor | None, keys: int) -> Packing | None:
    """The borders of tokens, and of what keys are counted in; None for an unpacked row."""
    return None if borders is None else Packing(borders[TOKENS], borders[keys])
