"""Softmax attention of grouped query heads under a mask, which all branches of the torch backend use."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.counter import COUNTER
from nsa.attention.flash import attend, unsupported


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """Attend from q [B, T, H, Dqk] to k [B, S, Hkv, Dqk], v [B, S, Hkv, Dv]; returns [B, T, H, Dv].

    `visible` is bool, broadcastable to [B, Hkv, T, S]; every query must see a key, or its row is NaN on some
    backends of SDPA. None means causal, with T = S. Scores are scaled by 1 / sqrt(Dqk).
    """
    batch, n_queries, n_heads, qk_dim = q.shape
    n_kv_heads, v_dim = k.shape[2], v.shape[3]
    group = n_heads // n_kv_heads
    # KV heads become rows of SDPA's batch, and the query heads of a group its heads: keys are broadcast, not copied.
    q = q.unflatten(2, (n_kv_heads, group)).permute(0, 2, 3, 1, 4).reshape(-1, group, n_queries, qk_dim)
    k, v = _per_kv_head(k, group), _per_kv_head(v, group)
    if q.device.type == "cpu" and qk_dim != v_dim:
        # SDPA's memory-efficient CPU kernel needs equal head dims; zeros change neither scores nor outputs.
        q, k, v = (F.pad(x, (0, max(qk_dim, v_dim) - x.shape[-1])) for x in (q, k, v))
    if visible is not None and visible.shape[:2] != (1, 1):
        visible = visible.expand(batch, n_kv_heads, -1, -1).reshape(-1, 1, *visible.shape[2:])
    out = F.scaled_dot_product_attention(q, k, v, visible, is_causal=visible is None, scale=qk_dim**-0.5)
    out = out[..., :v_dim].reshape(batch, n_heads, n_queries, v_dim)
    return out.transpose(1, 2)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, flash: str | None = None) -> Tensor:
    """`grouped_attention` with T = S and a causal mask, by the fastest kernel of SDPA.

    `flash` names the kernels of flash-attn that `flash.chosen` chose, which compute it if they support the call; both are counted.
    """
    if flash is not None:
        reason = unsupported(q, v)
        _count(flash, reason)
        if reason is None:
            return attend(flash, q, k, v)
    return _causal_by_sdpa(q, k, v) if q.device.type == "cuda" else grouped_attention(q, k, v, None)


def _causal_by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True).transpose(1, 2)


def _count(flash: str, reason: str | None) -> None:
    if torch.compiler.is_compiling():
        return
    if reason is None:
        COUNTER.called(f"dense {flash}")
    else:
        COUNTER.fell_back(f"dense {flash}", "torch", reason)


def _per_kv_head(x: Tensor, group: int) -> Tensor:
    """[B, S, Hkv, D] to [B * Hkv, group, S, D], the group broadcast."""
    return x.transpose(1, 2).flatten(0, 1)[:, None].expand(-1, group, -1, -1)
