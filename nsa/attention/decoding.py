"""Attention of the newest tokens to a `DecodeCache`: by the decode kernels, or row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention import BranchKV, nsa_attention, triton_backend
from nsa.attention.backends import COUNTER, resolve_backend
from nsa.attention.blocks import n_compress_slots
from nsa.cache import DecodeCache


def decode_attention(q: Tensor, gates: Tensor, cache: DecodeCache) -> Tensor:
    """Eq. 5 for the newest T tokens of each row, which `cache` holds already; [B, T, H, Dv].

    q is [B, T, H, Dqk], gates [B, T, H, 3]. By the decode kernels where the backend is triton and they can answer;
    else row by row as `nsa_attention` has it, which waits for the device to say how long the rows are.
    """
    config = cache.config
    backend, reason = decode_backend(cache)
    if backend == "triton":
        from nsa.attention.kernels.decode import decode

        COUNTER.called("triton")
        return decode(
            q.contiguous(), cache.keys, cache.values, gates.contiguous(), cache.rows.lengths, config
        )
    if reason is not None:
        COUNTER.fell_back("triton", backend, reason)
    rows = [
        _row_attention(q[b : b + 1], gates[b : b + 1], cache, b, past, backend)
        for b, past in enumerate(cache.rows.lengths.tolist())
    ]
    return torch.cat(rows)


def decode_backend(cache: DecodeCache) -> tuple[str, str | None]:
    """The backend that decodes from `cache`, once it holds a prompt, and why it is not triton where that was meant.

    Only the kernels of triton can be recorded: the others ask the device for the lengths of the rows.
    """
    held = next(x for x in cache.values if x is not None)
    backend = resolve_backend(cache.config.backend, held.device)
    if backend != "triton":
        return backend, None
    reason = triton_backend.cannot_decode(held, cache.keys, cache.values, cache.config)
    return ("triton", None) if reason is None else ("torch", reason)


def _row_attention(q: Tensor, gates: Tensor, cache: DecodeCache, row: int, past: int, backend: str) -> Tensor:
    n_tokens = past + q.shape[1]
    n_blocks = n_compress_slots(cache.config, n_tokens, packed=False)
    newest = torch.arange(max(0, n_tokens - cache.window_ring), n_tokens, device=q.device) % cache.window_ring
    held: list[slice | Tensor] = [slice(n_blocks), slice(n_tokens), newest]
    k, v = (
        BranchKV(*(x if x is None else x[row, None][:, which] for x, which in zip(kv, held, strict=True)))
        for kv in (cache.keys, cache.values)
    )
    return nsa_attention(q, k, v, gates, cache.config, past_length=past, backend=backend)
