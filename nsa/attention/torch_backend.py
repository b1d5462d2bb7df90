"""Backend "torch": the branches in plain PyTorch, with a number of autograd nodes independent of the tokens."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.blocks import BlockLayout, block_layout, packed_borders
from nsa.attention.compressed import compressed_attention
from nsa.attention.inputs import BRANCHES, BranchKV, Call, readable
from nsa.attention.selected import select_blocks, selected_attention
from nsa.attention.sliding import sliding_attention


def torch_attention(call: Call) -> Tensor:
    """Eq. 5, the gated sum of the branches.

    Packed sequences are computed one after another, or, in a compiled graph, where their lengths are unknown, together
    under a mask. The output of a sequence that holds NaN or infinity is NaN, and the others are not affected.
    The selected branch masks dense attention, so its work grows with T * S, and it keeps a [B * Hkv, T, S]
    mask in q's dtype for backward (34 MB a layer for 2,048 tokens and 2 KV heads in fp32).
    """
    q, k, v, gates, config, cu_seqlens, past_length = call
    if cu_seqlens is not None and readable(cu_seqlens):
        return _each_alone(call, cu_seqlens)
    layout = block_layout(config, q.shape[1], q.device, cu_seqlens, past_length)
    broken = None
    if cu_seqlens is not None:
        broken, q, k, v = _without_broken(q, k, v, layout)
    out = None
    for branch in config.branches:
        if branch == "compressed":
            part = compressed_attention(q, k.compressed, v.compressed, layout)
        elif branch == "selected":
            blocks = select_blocks(q, k.compressed, layout)
            part = selected_attention(q, k.selected, v.selected, blocks, layout)
        else:
            part = sliding_attention(q, k.sliding, v.sliding, layout)
        part = gates[..., BRANCHES.index(branch), None] * part
        out = part if out is None else out + part
    out = out.to(q.dtype)
    return out if broken is None else out.masked_fill(broken[:, None, None], torch.nan)


def _each_alone(call: Call, cu_seqlens: Tensor) -> Tensor:
    """Attention of one packed sequence after another: work and memory grow with the square of each, not of the row."""
    q, k, v, gates, config, *_ = call
    tokens, slots, _ = packed_borders(config, q.shape[1], cu_seqlens).tolist()

    def part(each: BranchKV, i: int) -> BranchKV:
        own = slice(tokens[i], tokens[i + 1])
        where = (slice(slots[i], slots[i + 1]), own, own)
        return BranchKV(*(x if x is None else x[:, at] for x, at in zip(each, where, strict=True)))

    outs = []
    for i, (start, end) in enumerate(pairwise(tokens)):
        if start < end:
            own = slice(start, end)
            outs.append(torch_attention(Call(q[:, own], part(k, i), part(v, i), gates[:, own], config)))
    return torch.cat(outs, dim=1)


def _without_broken(
    q: Tensor, k: BranchKV, v: BranchKV, layout: BlockLayout
) -> tuple[Tensor, Tensor, BranchKV, BranchKV]:
    """Keep non-finite numbers of one packed sequence from reaching the others, as masked NaN still gives 0 * NaN = NaN.

    Returns bool [T], the tokens of sequences that hold such numbers, and q, k and v with 0 in their place.
    """
    n_tokens = layout.n_tokens
    start_of_token = F.pad(layout.query_start, (0, 1), value=n_tokens)  # the last is that of unused slots
    start_of_slot = start_of_token[layout.compress_first]
    bad = torch.zeros(n_tokens + 1, dtype=torch.int32, device=q.device)  # by the sequence's first token
    for i, x in enumerate((*k, *v, q)):
        if x is not None:
            start = start_of_slot if i % 3 == 0 and i < 6 else layout.query_start
            bad = bad.index_add(0, start, (~x.detach()[0].isfinite().flatten(1).all(1)).int())
    token, slot = (bad[start] > 0 for start in (layout.query_start, start_of_slot))
    k, v = (BranchKV(*(_zeroed(x, slot if i == 0 else token) for i, x in enumerate(each))) for each in (k, v))
    return token, _zeroed(q, token), k, v


def _zeroed(x: Tensor | None, where: Tensor) -> Tensor | None:
    return x if x is None else x.masked_fill(where[:, None, None], 0)
