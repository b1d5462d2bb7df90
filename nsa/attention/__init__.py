"""Native Sparse Attention (arXiv 2502.11089): the gated sum of three branches, by a choice of backends."""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.backends import BACKENDS, COUNTER, BackendUse, backends_used, resolve_backend
from nsa.attention.compressed import mean_of_blocks
from nsa.attention.inputs import BRANCHES, BranchKV, Call, check_inputs, check_plain
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

_OF_THE_PAPER = AttentionConfig()


def nsa_attention(
    q: Tensor,
    k: Tensor | BranchKV,
    v: Tensor | BranchKV,
    gates: Tensor,
    config: AttentionConfig | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    past_length: int | None = None,
    backend: str | None = None,
) -> Tensor:
    """Native Sparse Attention, Eq. 5 of arXiv 2502.11089: T queries over compressed, selected and sliding keys.

    Shapes: q [B, T, H, D], gates [B, T, H, 3] after their sigmoid, in the order of BRANCHES; returns
    [B, T, H, Dv] in the dtype of q. All are bf16, fp16, fp32 or fp64, with positions already rotated in. Scores are
    scaled by 1 / sqrt(D). H is any multiple of Hkv.

    Plain k [B, S, Hkv, D] and v [B, S, Hkv, Dv] are used by all three branches, and φ (Eq. 7) is the mean of a block.
    In the full form k and v are `BranchKV`, separate keys and values for each branch, the compressed ones already
    compressed.

    `config` has the lengths in tokens; the default is the paper's. The queries are the last T of
    S = `past_length` + T tokens; with plain k and v it follows from their shapes. `cu_seqlens`, int32 or int64
    [N + 1], are the borders of sequences packed into one row (B = 1): attention never crosses them, and tokens after
    the last border form one more sequence. `backend` overrides `config.backend`.

    Raises ValueError that names the tensor, what it has and what it needs, and ConfigError for a backend that is
    not available.
    """
    config = config or _OF_THE_PAPER
    if isinstance(k, Tensor) or isinstance(v, Tensor):
        check_plain(q, k, v, past_length, cu_seqlens)
        past_length = k.shape[1] - q.shape[1]
        k, v = (BranchKV(mean_of_blocks(x, config, cu_seqlens), x, x) for x in (k, v))
    call = Call(q, k, v, gates, config, cu_seqlens, past_length or 0)
    check_inputs(call)
    name = resolve_backend(backend or config.backend, q.device)
    if not torch.compiler.is_compiling():
        COUNTER.called(name)
    return BACKENDS[name](call)
