

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.backends import BACKENDS, COUNTER, BackendUse, backends_used, resolve_backend
from nsa.attention.blocks import n_compress_slots
from nsa.attention.inputs import BRANCHES, BranchKV, check_inputs, check_packing
from nsa.config import AttentionConfig

__all__ = [
    "BACKENDS",
    "BRANCHES",
    "BackendUse",
    "BranchKV",
    "backends_used",
    "nsa_attention",
    "resolve_backend",
]


def nsa_attention(
    q: Tensor,
    k: BranchKV,
    v: BranchKV,
    gates: Tensor,
    config: AttentionConfig,
    *,
    cu_seqlens: Tensor | None = None,
    past_length: int = 0,
    backend: str | None = None,
) -> Tensor:
    """Eq. 5: attention of T queries over compressed, selected and sliding keys; returns [B, T, H, Dv].

    q is [B, T, H, Dqk]; k and v hold per branch [B, NC or S, Hkv, D], positions already rotated in; gates are
    [B, T, H, 3], after their sigmoid, in the order of BRANCHES. The queries are the last T of
    S = `past_length` + T tokens. `cu_seqlens`, int [N+1], are the borders of sequences packed into one row
    (B = 1): nothing crosses them. `backend` overrides `config.backend`.

    Raises ValueError for shapes that do not fit and ConfigError for a backend that is not available.
    """
    check_packing(q.shape[0], cu_seqlens, past=past_length > 0)
    n_blocks = n_compress_slots(config, past_length + q.shape[1], packed=cu_seqlens is not None)
    check_inputs(q, k, gates, config, n_blocks)
    name = resolve_backend(backend or config.backend, q.device)
    if not torch.compiler.is_compiling():
        COUNTER.called(name)
    return BACKENDS[name](q, k, v, gates, config, cu_seqlens=cu_seqlens, past_length=past_length)
