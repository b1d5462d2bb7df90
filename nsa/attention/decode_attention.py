"""Attention of the newest tokens to a `DecodeCache`: by the decode kernels, or row by row."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from nsa.attention import BRANCHES, BranchKV, nsa_attention, triton_backend
from nsa.attention.backends import COUNTER, resolve_backend
from nsa.attention.blocks import n_compress_slots
from nsa.attention.inputs import check_newest
from nsa.cache import DecodeCache
from nsa.config import AttentionConfig


def decode_attention(q: Tensor, gates: Tensor, cache: DecodeCache) -> Tensor:
    """Eq. 5 for the newest T tokens of each row, which `cache` holds already; [B, T, H, Dv].

    q is [B, T, H, Dqk], gates [B, T, H, 3]; ValueError if they do not fit the cache. The decode kernels compute it if
    the backend is triton and they support the call; otherwise `nsa_attention` does, row by row, which synchronises to
    read the lengths of the rows. In a compiled graph both are one operator.
    """
    check_newest(q, gates, cache.keys, len(cache.rows.index), cache.new_tokens)
    backend, reason = decode_backend(cache)
    if backend == "triton":
        triton_backend.check_no_tangents()
    if torch.compiler.is_compiling():
        lengths = [getattr(cache.config, name) for name in _LENGTHS]
        keys, values = [*cache.keys], [*cache.values]
        return _decode_attention(q, gates, cache.rows.lengths, keys, values, lengths, backend)
    if backend == "triton":
        COUNTER.called("triton")
    elif reason is not None:
        COUNTER.fell_back("triton", backend, reason)
    return _attend(q, gates, cache.rows.lengths, cache.keys, cache.values, cache.config, backend)


def decode_backend(cache: DecodeCache) -> tuple[str, str | None]:
    """The backend that decodes from `cache`, which holds a prompt, and the reason for a fallback from triton, if any.

    Only triton can be part of a CUDA graph: the others read the lengths of the rows from the device.
    """
    held = next(x for x in cache.values if x is not None)
    backend = resolve_backend(cache.config.backend, held.device)
    if backend != "triton":
        return backend, None
    reason = triton_backend.cannot_decode(held, cache.keys, cache.values, cache.config)
    return ("triton", None) if reason is None else ("torch", reason)


def _attend(
    q: Tensor,
    gates: Tensor,
    past: Tensor,
    keys: BranchKV,
    values: BranchKV,
    config: AttentionConfig,
    backend: str,
) -> Tensor:
    """As `decode_attention`; `past` [B] is the number of tokens of each row before the queries."""
    if backend == "triton":
        from nsa.attention.kernels.decode import decode

        return decode(q.contiguous(), keys, values, gates.contiguous(), past, config)
    outs = []
    for b, before in enumerate(past.tolist()):
        row = slice(b, b + 1)
        k, v = (_of_row(kv, row, before + q.shape[1], config) for kv in (keys, values))
        outs.append(nsa_attention(q[row], k, v, gates[row], config, past_length=before, backend=backend))
    return torch.cat(outs)


def _of_row(kv: BranchKV, row: slice, n_tokens: int, config: AttentionConfig) -> BranchKV:
    """The keys, or values, of one row of `n_tokens`, those of the window taken from their ring in order."""
    compressed, selected, ring = (x if x is None else x[row] for x in kv)
    if ring is not None:
        size = ring.shape[1]
        ring = ring[:, torch.arange(max(0, n_tokens - size), n_tokens, device=ring.device) % size]
    if compressed is not None:
        compressed = compressed[:, : n_compress_slots(config, n_tokens, packed=False)]
    return BranchKV(compressed, selected if selected is None else selected[:, :n_tokens], ring)


_LENGTHS = tuple(name for name, field in AttentionConfig.model_fields.items() if type(field.default) is int)


@torch.library.custom_op(
    "nsa::decode_attention",
    mutates_args=(),
    # Torch 2.6 infers no schema from `list[...]`.
    schema="(Tensor q, Tensor gates, Tensor past, Tensor?[] keys, Tensor?[] values, SymInt[] lengths, str backend)"
    " -> Tensor",
)
def _decode_attention(
    q: Tensor,
    gates: Tensor,
    past: Tensor,
    keys: list[Tensor | None],
    values: list[Tensor | None],
    lengths: list[int],
    backend: str,
) -> Tensor:
    """As `_attend`; `lengths` are those of the configuration, and its branches are those that have values."""
    branches = tuple(name for name, v in zip(BRANCHES, values, strict=True) if v is not None)
    config = _configuration(tuple(lengths), branches)
    return _attend(q, gates, past, BranchKV(*keys), BranchKV(*values), config, backend)


@_decode_attention.register_fake
def _(q, gates, past, keys, values, lengths, backend):
    v = next(v for v in values if v is not None)
    return q.new_empty(*q.shape[:3], v.shape[3])


@lru_cache
def _configuration(lengths: tuple[int, ...], branches: tuple[str, ...]) -> AttentionConfig:
    return AttentionConfig(**dict(zip(_LENGTHS, lengths, strict=True)), branches=branches)
