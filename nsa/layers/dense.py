"""Dense attention as a layer of a model: the control of `NSAAttention`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nsa.attention.blocks import sequence_borders
from nsa.attention.dense import causal_attention, grouped_attention
from nsa.attention.flash import chosen
from nsa.attention.inputs import (
    check_heads,
    check_packing,
    check_positions,
    check_sharded,
    check_states,
    readable,
)
from nsa.cache import DenseDecodeCache, Rows
from nsa.context import ContextShard
from nsa.layers.rope import RotationTable, rotate, rotation_of, rotations_of_row, sequence_start


class DenseAttention(nn.Module):
    """Causal attention to every key, grouped query heads, rotary positions: the control of NSAAttention."""

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        head_dim: int,
        *,
        v_head_dim: int | None = None,
        rotations: RotationTable | None = None,
        flash: bool = False,
    ) -> None:
        """`flash` has flash-attn's kernels compute forward passes and prompts; ConfigError where they cannot."""
        super().__init__()
        self.flash = chosen() if flash else None
        check_heads(n_heads, n_kv_heads)
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim, self.v_head_dim = head_dim, v_head_dim or head_dim
        self.rotations = rotations or RotationTable(head_dim)
        self.context: ContextShard | None = None
        width = (n_heads + n_kv_heads) * head_dim + n_kv_heads * self.v_head_dim
        self.in_proj = nn.Linear(dim, width, bias=False)
        self.o_proj = nn.Linear(n_heads * self.v_head_dim, dim, bias=False)

    def new_decode_cache(self, rows: Rows) -> DenseDecodeCache:
        """An empty cache for `decode`."""
        return DenseDecodeCache(rows)

    def records(self, cache: DenseDecodeCache) -> bool:
        """Whether `decode` can be part of a CUDA graph: always."""
        return True

    def decode(self, x: Tensor, cache: DenseDecodeCache) -> Tensor:
        """Attend from the next tokens x [B, T, dim] of each row to those in `cache`, as `NSAAttention.decode`."""
        wide = torch.promote_types(x.dtype, torch.float32)
        turn = self.rotations.at(cache.rows.tokens(x.shape[1]), cache.positions, wide)
        q, k, v = self._project(x, turn)
        cache.write(k, v)
        return self.o_proj(grouped_attention(q, cache.k, cache.v, cache.visible(x.shape[1])).flatten(2))

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: DenseDecodeCache | None = None,
    ) -> Tensor:
        """Attend causally within x [B, T, dim], a prompt that fills `cache` if there is one; arguments as in `NSAAttention.forward`."""
        check_states(x, self.in_proj.in_features)
        check_positions(positions, x)
        if self.context is not None:
            check_sharded(positions, cache)
            return self._forward_sharded(x, self.context, cu_seqlens)
        check_packing(*x.shape[:2], cu_seqlens, past=cache is not None)
        q, k, v = self._project(x, rotation_of(self.rotations, x, positions, cu_seqlens, 0))
        if cache is not None:
            cache.fill(k, v)
        if cu_seqlens is not None and readable(cu_seqlens):
            borders = sequence_borders(x.shape[1], x.device, cu_seqlens).diff().tolist()
            parts = zip(*(each.split(borders, dim=1) for each in (q, k, v)), strict=True)
            out = torch.cat(
                [causal_attention(*part, self.flash) for part in parts if part[0].shape[1]], dim=1
            )
        else:
            visible = _causal(x.shape[1], x.device, cu_seqlens, 0)
            out = (
                causal_attention(q, k, v, self.flash)
                if visible is None
                else grouped_attention(q, k, v, visible)
            )
        return self.o_proj(out.flatten(2))

    def _forward_sharded(self, x: Tensor, context: ContextShard, cu_seqlens: Tensor | None) -> Tensor:
        n_tokens = context.size * x.shape[1]
        check_packing(x.shape[0], n_tokens, cu_seqlens, past=False)
        turn = rotations_of_row(self.rotations, x, n_tokens, cu_seqlens)
        q, own_k, own_v = self._project(x, context.take(turn, 0))
        k, v = (context.gather(kv.flatten(2)).unflatten(-1, kv.shape[2:]) for kv in (own_k, own_v))
        outs = []
        for span in context.spans(x.shape[1]):
            visible = _causal(span.end - span.past, x.device, cu_seqlens, span.past)
            outs.append(grouped_attention(q[:, span.local], k[:, : span.end], v[:, : span.end], visible))
        return self.o_proj(torch.cat(outs, dim=1).flatten(2))

    def _project(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        turned_heads, value_width = self.n_heads + self.n_kv_heads, self.n_kv_heads * self.v_head_dim
        turned, v = self.in_proj(x).split([turned_heads * self.head_dim, value_width], dim=-1)
        turned = rotate(turned.unflatten(-1, (turned_heads, self.head_dim)), turn)
        q, k = turned.split([self.n_heads, self.n_kv_heads], dim=2)
        return q, k, v.unflatten(-1, (self.n_kv_heads, self.v_head_dim))


def _causal(
    n_queries: int, device: torch.device, cu_seqlens: Tensor | None, past_length: int
) -> Tensor | None:
    """bool [1, 1, T, S]; None if plain causal attention is enough."""
    if cu_seqlens is None and not past_length:
        return None
    keys = torch.arange(past_length + n_queries, device=device)
    queries = keys[past_length:, None]
    visible = keys <= queries
    if cu_seqlens is not None:
        borders = cu_seqlens.clamp(max=len(keys))  # of a row that may be longer
        visible = visible & (keys >= sequence_start(keys, borders)[past_length:, None])
    return visible[None, None]
