"""A loss for training alone: the scores that select blocks are to rank them as attention to their tokens would.

No gradient goes through the choice of blocks (Eq. 11 and 12), so only what the compressed branch outputs trains the
scores, and nothing trains them to find the block that one token of it matters in.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nsa.attention import BranchKV
from nsa.attention.blocks import BlockLayout, block_layout
from nsa.attention.selected import block_importance, compressed_probability
from nsa.config import AttentionConfig

QUERIES = 128  # of each row and call: dense attention of so many is B * 128 * H * S scores in fp32
_LEAST = 1e-9


def selection_loss(
    q: Tensor, k: BranchKV, config: AttentionConfig, cu_seqlens: Tensor | None = None, queries: int = QUERIES
) -> Tensor:
    """The mean cross-entropy in nats, over random queries, of the blocks' importance under their share of attention.

    q is [B, T, H, D], k as `nsa_attention` takes it, without a past. The share of a block is the softmax of the query's
    scores against *all* keys of the selected branch, summed over the block and averaged over the heads of a group; its
    importance is that of Eq. 10. Blocks that are selected in any case have no part in either, so a query that
    needs no others has little weight. Gradients go to `k.compressed` alone.
    """
    layout = block_layout(config, q.shape[1], q.device, cu_seqlens)
    at = torch.randint(q.shape[1], (min(queries, q.shape[1]),), device=q.device)
    layout = replace(layout, query=layout.query[at], query_start=layout.query_start[at])
    q = q[:, at].detach()
    choice = layout.may_select() & ~layout.must_select()
    wanted = _shares(q, k.selected.detach(), layout).masked_fill(~choice, 0)
    importance = block_importance(compressed_probability(q, k.compressed, layout), layout)
    importance = importance.masked_fill(~choice, 0)
    given = importance / (importance.sum(-1, keepdim=True) + _LEAST)
    return -(wanted * (given + _LEAST).log()).sum(-1).mean()


@torch.no_grad()
def _shares(q: Tensor, k: Tensor, layout: BlockLayout) -> Tensor:
    """The attention of each query to each selection block, [B, Hkv, T, NS], in fp32 at least."""
    wide = torch.promote_types(q.dtype, torch.float32)
    blocks = torch.arange(len(layout.select_first), device=q.device)
    in_block = (layout.select_block_of[:, None] == blocks).to(
        wide
    )  # a product: a scatter would add in any order
    keys = torch.arange(layout.n_tokens, device=q.device)
    visible = (keys <= layout.query[:, None]) & (keys >= layout.query_start[:, None])
    with torch.autocast(q.device.type, enabled=False):
        grouped = q.to(wide).unflatten(2, (k.shape[2], -1))
        scores = torch.einsum("bthgd,bshd->bhgts", grouped, k.to(wide)) * q.shape[-1] ** -0.5
        attention = scores.masked_fill(~visible, -torch.inf).softmax(-1).mean(2)
        return attention @ in_block


class _WithLoss(torch.autograd.Function):
    """The identity, whose backward is that of a loss too: it needs no way through the layers above."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, out: Tensor, loss: Tensor) -> Tensor:
        ctx.dtype = loss.dtype
        return out.view_as(out)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad.new_ones((), dtype=ctx.dtype)


def with_loss(out: Tensor, loss: Tensor) -> Tensor:
    """`out`, whose backward pass also adds the gradients of the scalar `loss`."""
    return _WithLoss.apply(out, loss)
