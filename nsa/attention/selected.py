"""The selected branch: blocks chosen by the scores of the compressed branch (Eq. 8-12), then attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.blocks import BlockLayout, stencil
from nsa.attention.dense import grouped_attention


@torch.no_grad()
def select_blocks(q: Tensor, k_compressed: Tensor, layout: BlockLayout) -> Tensor:
    """The selection blocks of each query: int64 [B, Hkv, T, n], ascending, then -1 where there are fewer.

    q is [B, T, H, Dqk], k_compressed [B, NC, Hkv, Dqk]. The forced blocks count among the n; ties go to the
    lower block; no gradient. In packed rows the numbers of blocks run on from one sequence to the next.
    """
    importance = block_importance(compressed_probability(q, k_compressed, layout), layout)
    rank = importance.masked_fill(layout.must_select(), torch.inf)
    rank = rank.masked_fill(~layout.may_select(), -torch.inf)
    # A stable sort sends ties to the lower block; topk promises no order.
    best, blocks = rank.sort(dim=-1, descending=True, stable=True)
    n_blocks, n_selected = rank.shape[-1], layout.config.select_count
    blocks = blocks.masked_fill(best == -torch.inf, n_blocks)[..., :n_selected].sort(dim=-1).values
    blocks = blocks.masked_fill(blocks == n_blocks, -1)
    return F.pad(blocks, (0, n_selected - blocks.shape[-1]), value=-1)


def block_importance(probability: Tensor, layout: BlockLayout) -> Tensor:
    """Eq. 9: compressed-attention probabilities [..., NC] to selection-block importance [..., NS]."""
    padded = F.pad(probability, (0, 1))  # the slot of taps that fall outside the sequence
    importance = probability.new_zeros(*probability.shape[:-1], len(layout.select_first))
    # One tap at a time, so that every block sums in the same order and equal blocks tie bitwise.
    for tap, (_, weight) in enumerate(stencil(layout.config)):
        importance += weight * padded.index_select(-1, layout.stencil_slots[:, tap])
    return importance


def selected_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, layout: BlockLayout) -> Tensor:
    """Eq. 5 on the selected branch: q [B, T, H, Dqk], k and v [B, S, Hkv, D], `blocks` of select_blocks.

    Returns [B, T, H, Dv]. Attends under a mask, bool [B, Hkv, T, S], which is the work of dense attention:
    gathering every query's keys and values instead would take 2 GB a layer at 2,048 tokens (n=16, l'=64,
    2 KV heads of 64).
    """
    return grouped_attention(q, k, v, selected_keys(blocks, layout))


def selected_keys(blocks: Tensor, layout: BlockLayout) -> Tensor:
    """bool [B, Hkv, T, S]: the key lies in a selected block, and not in the query's future."""
    n_blocks = len(layout.select_first)
    chosen = torch.zeros(*blocks.shape[:-1], n_blocks + 1, dtype=torch.bool, device=blocks.device)
    chosen = chosen.scatter(-1, blocks.masked_fill(blocks < 0, n_blocks), True)
    keys = torch.arange(layout.n_tokens, device=blocks.device)
    return chosen.index_select(-1, layout.select_block_of) & (keys <= layout.query[:, None])


def selected_key_counts(blocks: Tensor, layout: BlockLayout) -> Tensor:
    """int64 [B, Hkv, T]: the number of keys that each query sees in its blocks, without those in its future."""
    return selected_keys(blocks, layout).sum(-1)


def compressed_probability(q: Tensor, k: Tensor, layout: BlockLayout) -> Tensor:
    """Eq. 8, summed over the heads of a group (Eq. 10): [B, Hkv, T, NC], in fp32 at least."""
    wide = torch.promote_types(q.dtype, torch.float32)
    device = "cpu" if q.is_meta else q.device.type  # there is no autocast of meta tensors
    with torch.autocast(device, enabled=False):  # bf16 probabilities would tie by rounding
        grouped = q.to(wide).unflatten(2, (k.shape[2], -1))
        scores = torch.einsum("bthgd,bchd->bhgtc", grouped, k.to(wide)) * q.shape[-1] ** -0.5
    visible = layout.sees_compressed()
    probability = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return probability.masked_fill(~visible, 0).sum(2)  # rows that see no block are NaN until here
