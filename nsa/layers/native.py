"""Native Sparse Attention as a layer with the arguments that are usual in other libraries."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsa.attention.inputs import check_sizes, check_states
from nsa.cache import DecodeCache, Rows, one_by_one
from nsa.config import AttentionConfig
from nsa.layers.rope import RotationTable
from nsa.layers.sparse import NSAAttention
from nsa.padding import alignment_of, check_continued, packing_of

_ONE_A_ROW = "a cache holds one sequence a row: pad them and give attention_mask, not cu_seqlens"


class NativeSparseAttention(NSAAttention):
    """A causal attention layer, `hidden_states` [B, T, hidden_size] to [B, T, hidden_size].

    Defaults are the paper's: 64 query heads in 4 groups of one key and value head, l = 32, d = 16, l' = 64, n = 16,
    w = 512. Lengths are tokens. `head_dim` is hidden_size // num_heads by default, and must be even; `v_head_dim`
    may differ. Positions are rotary, of base `rope_theta`, and counted by the layer. `lengths` are fields of
    `AttentionConfig`: its lengths, and others such as `compression="mean"` or `backend="torch"`. Raises ValueError
    (`ConfigError` is one) for sizes that do not fit.
    """

    def __init__(
        self,
        hidden_size: int = 2048,
        num_heads: int = 64,
        num_kv_heads: int = 4,
        head_dim: int | None = None,
        *,
        v_head_dim: int | None = None,
        rope_theta: float = 10_000.0,
        **lengths: Any,
    ) -> None:
        check_sizes(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads)
        head_dim = hidden_size // num_heads if head_dim is None else head_dim
        check_sizes(head_dim=head_dim, v_head_dim=head_dim if v_head_dim is None else v_head_dim)
        if rope_theta <= 0:
            raise ValueError(f"rope_theta is {rope_theta}; it must be positive")
        rotations = RotationTable(head_dim, rope_theta)
        config = AttentionConfig(**lengths)
        super().__init__(
            hidden_size, num_heads, num_kv_heads, head_dim, config, v_head_dim=v_head_dim, rotations=rotations
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: DecodeCache | None = None,
        use_cache: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, None, DecodeCache | None]:
        """Return the output, None in the place of attention weights, and the cache if there is one.

        `attention_mask` [B, T] is 1 at tokens and 0 at padding, on either side; the output of padding is 0.
        `cu_seqlens` [N + 1] are the borders of sequences packed into one row. With `use_cache` a prompt, padded or
        not, returns a cache of this layer; pass it to the next call as `past_key_values`, with the next tokens
        of every row; a mask is then of all tokens so far, [B, seen + new]. Caches are for inference: no gradients flow through
        them. Raises ValueError for a mask of another shape or with values but 0 and 1, for a mask or a cache together with
        `cu_seqlens`, for padding among the tokens after a cache, and for a cache that is not of such a layer.
        """
        check_states(hidden_states, self.in_proj.in_features)
        if past_key_values is not None:
            if not isinstance(past_key_values, DecodeCache):
                kind = type(past_key_values).__name__
                raise ValueError(f"past_key_values is a {kind}; give the cache that this layer returned")
            if cu_seqlens is not None:
                raise ValueError(_ONE_A_ROW)
            check_continued(attention_mask, hidden_states, past_key_values.rows)
            with torch.no_grad():
                out = one_by_one(
                    hidden_states,
                    past_key_values.rows,
                    [past_key_values],
                    partial(self.decode, cache=past_key_values),
                )
            return out, None, past_key_values
        if use_cache:
            return self._begin(hidden_states, attention_mask, cu_seqlens)
        if attention_mask is None:
            return super().forward(hidden_states, cu_seqlens=cu_seqlens), None, None
        if cu_seqlens is not None:
            raise ValueError("attention_mask and cu_seqlens both say where sequences end: give one")
        packing = packing_of(attention_mask, hidden_states)
        out = super().forward(packing.pack(hidden_states), cu_seqlens=packing.cu_seqlens)
        return packing.unpack(out), None, None

    @torch.no_grad()
    def _begin(
        self, prompt: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, None, DecodeCache]:
        if cu_seqlens is not None:
            raise ValueError(_ONE_A_ROW)
        if attention_mask is None:
            attention_mask = torch.ones(prompt.shape[:2], dtype=torch.bool, device=prompt.device)
        alignment = alignment_of(attention_mask, prompt)
        rows = Rows.that_grow(alignment.lengths, prompt.shape[1])
        cache = self.new_decode_cache(rows)
        out = super().forward(alignment.take(prompt), cache=cache)
        return alignment.put_back(out), None, cache
