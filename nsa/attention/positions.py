"""Where the tokens of a layer's input stand, and what a layer refuses."""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.blocks import sequence_borders
from nsa.attention.rope import RotationTable, rotation


def rotation_of(
    table: RotationTable, x: Tensor, positions: Tensor | None, cu_seqlens: Tensor | None, past_length: int
) -> Tensor:
    """The rotation of each token of x [B, T, dim]: [T, D] or [B, T, D], in fp32, or fp64 where x is."""
    if positions is None and cu_seqlens is None:
        return first_rotations(table, x, past_length + x.shape[1])[past_length:]
    if positions is None:
        positions = token_positions(x.shape[1], x.device, cu_seqlens, past_length)
    return rotation(positions, table.dim, table.base, torch.promote_types(x.dtype, torch.float32))


def first_rotations(table: RotationTable, x: Tensor, n: int) -> Tensor:
    """Those of positions 0 to n - 1, [n, D]: in fp32, or fp64 where x is."""
    if x.dtype != torch.float64:
        return table.upto(n, x.device)
    return rotation(torch.arange(n, device=x.device), table.dim, table.base, torch.float64)


def token_positions(
    n_tokens: int, device: torch.device, cu_seqlens: Tensor | None = None, past_length: int = 0
) -> Tensor:
    """int64 [T]: each token's place in its sequence."""
    tokens = torch.arange(past_length, past_length + n_tokens, device=device)
    if cu_seqlens is None:
        return tokens
    return tokens - sequence_start(tokens, cu_seqlens)


def sequence_start(tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
    borders = sequence_borders(len(tokens), tokens.device, cu_seqlens)
    return borders[torch.searchsorted(borders, tokens, right=True) - 1]


def check_heads(n_heads: int, n_kv_heads: int) -> None:
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads is {n_heads}, which n_kv_heads ({n_kv_heads}) does not divide")


def check_sharded(positions: object, cu_seqlens: object, cache: object) -> None:
    if any(given is not None for given in (positions, cu_seqlens, cache)):
        raise ValueError("context parallelism takes whole sequences: no positions, cu_seqlens or cache")
