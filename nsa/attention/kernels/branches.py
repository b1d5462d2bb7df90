"""The branches before and after their gates, forward and backward: which kernel computes which branch.

Lists are in the order of BRANCHES, with None for a branch that is not there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsa.attention.kernels.bands.band import (
    Forward,
    Lengths,
    PerBranch,
    bands_dkv,
    bands_dq,
    bands_forward,
    chosen_band_forward,
)
from nsa.attention.kernels.selected.choose import Selection, select, select_few
from nsa.attention.kernels.selected.gather import Unions, selected_dkv, selected_dq, selected_forward
from nsa.attention.kernels.tiles import ceil_div


def few_blocks(q: Tensor, selection: Selection, lengths: Lengths, borders: Tensor | None) -> bool:
    """Whether queries select so large a share of the blocks that masking is faster than gathering.

    With 2n blocks a query selects on average three quarters of the blocks it sees. Tiles of keys must not straddle blocks.
    """
    n_blocks = ceil_div(lengths.past + q.shape[1], lengths.block)
    return borders is None and n_blocks <= min(32, 2 * selection.count) and lengths.block % 64 == 0


def choose(
    q: Tensor, scoring: Tensor, lse: Tensor, selection: Selection, lengths: Lengths, borders: Tensor | None
) -> Tensor:
    """The selection of the queries: blocks [B, Hkv, T, n], or bits [B, Hkv, T] (`select_few`).

    `lse` is that of the attention to the compressed keys, `scoring`.
    """
    if few_blocks(q, selection, lengths, borders):
        return select_few(q, scoring, lse, selection, lengths.past)
    return select(q, scoring, lse, selection, lengths.past, borders)


def first_forward(
    q: Tensor, k: PerBranch, v: PerBranch, scoring: Tensor | None, lengths: Lengths, borders: Tensor | None
) -> tuple[Forward, Tensor | None]:
    """The branches that need no selection, and the lse that selection needs; `scoring` are the compressed keys it scores.

    Without `scoring` every query selects every block it may select, and the selected branch is a band too.
    """
    if scoring is not None:
        k, v = (k[0], None, k[2]), (v[0], None, v[2])
    bands = Forward([None] * 3, [None] * 3)
    if any(x is not None for x in v):
        bands = bands_forward(q, k, v, lengths, borders)
    if scoring is None or v[0] is not None:
        return bands, bands.lses[0]
    only = (scoring, None, None)
    return bands, bands_forward(q, only, only, lengths, borders).lses[0]


def chosen_forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, lengths: Lengths, borders: Tensor | None, others: PerBranch,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Unions | None]:  # fmt: skip
    """The gated sum with the `others`' outputs, then output and lse of the selected branch, and the unions of `blocks`
    that its backward needs, if any."""
    if blocks.dim() == 3:
        return (*chosen_band_forward(q, k, v, blocks, lengths, others, gates), None)
    return selected_forward(q, k, v, blocks, lengths.block, lengths.past, borders, others, gates)


def branches_backward(
    dout: Tensor, q: Tensor, k: PerBranch, v: PerBranch, stats: Tensor, blocks: Tensor | None, union: PerBranch, lengths: Lengths,
    borders: Tensor | None,
) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """The gradients of q, and of k and v of every branch; `stats` are those of `gates.gate_backward`.

    `blocks` is the selection, if there was one, and `union` the unions that the forward kept.
    """
    by_lists = blocks is not None and blocks.dim() == 4
    bits = None if by_lists else blocks
    band_k, band_v = ((x[0], None, x[2]) if by_lists else x for x in (k, v))
    if all(x is None for x in band_v):
        dq, dk, dv = torch.empty_like(q), [None] * 3, [None] * 3
    else:
        dq = bands_dq(q, band_k, band_v, dout, stats, lengths, borders, bits)
        dk, dv = bands_dkv(q, band_k, band_v, dout, stats, lengths, borders, bits)
    if by_lists:
        add = any(x is not None for x in band_v)
        selected = (q, k[1], v[1], dout, stats)
        places = (lengths.block, lengths.past, borders)
        selected_dq(*selected, dq, Unions(*union), blocks.shape[3], *places, add=add)
        dk[1], dv[1] = selected_dkv(*selected, blocks, *places)
    return dq, dk, dv


# The order of the tensors that a forward keeps for its backward: q, three k, three v, the gates, three outputs, three lse, the
# selected blocks, three tensors of their unions, the borders.
OUTPUTS = slice(8, 11)


def gradients(
    dout: Tensor,
    saved: list[Tensor | None],
    lengths: Lengths,
    gate_backward: Callable[..., tuple[Tensor, Tensor]],
    branches_backward: Callable[..., tuple[Tensor, list[Tensor | None], list[Tensor | None]]],
) -> tuple[Tensor | None, ...]:
    """The gradients of q, three k, three v and the gates.

    The outputs of the branches, three tensors as large as q, are needed for the gates' gradients
    only: they are removed from `saved`, so that they are freed before the other gradients are allocated.
    """
    outs = saved[OUTPUTS]
    saved[OUTPUTS] = [None] * 3
    q, k, v, gates, lses, blocks, union, borders = (
        saved[0], saved[1:4], saved[4:7], saved[7], saved[11:14], saved[14], saved[15:18], saved[18],
    )  # fmt: skip
    dout = dout.contiguous()
    dgates, stats = gate_backward(dout, outs, lses, gates)
    del outs
    dq, dk, dv = branches_backward(dout, q, k, v, stats, blocks, union, lengths, borders)
    return (dq, *dk, *dv, dgates)
