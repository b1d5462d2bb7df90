"""Positions of tokens, and their rotary embedding (Su et al., arXiv 2104.09864), halves rotated as in GPT-NeoX."""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.blocks import sequence_borders, sequence_of
from nsa.attention.inputs import traced


def rotation(positions: Tensor, dim: int, base: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """cos, then sin, of each pair's angle: [..., dim] in `dtype` for `positions` [...]. ValueError if dim is odd.

    Angles are fp64: an fp32 angle at position 65,000 is off by 0.004.
    """
    _check_even(dim)
    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64) / dim
    angles = positions[..., None] * base**-exponents
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate x [B, T, H, D] by `turn` [T, D] or [B, T, D] from `rotation`, in at least fp32; keeps dtype and shape."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = turn.to(wide).unsqueeze(-2).chunk(2, dim=-1)
    first, second = x.to(wide).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class RotationTable:
    """A growing table of the rotations of positions 0, 1, 2, ... in fp32.

    Every layer of every step needs the same ones. Computing them in each layer takes a dozen launches, and a compiler
    would inline fp64 sines into each head's rotation.
    """

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        """For head dim `dim`; ValueError if it is odd."""
        _check_even(dim)
        self.dim, self.base = dim, base
        self._table: Tensor | None = None
        self._outgrown: list[Tensor] = []  # kept, as CUDA graphs may hold their addresses

    def upto(self, n: int, device: torch.device) -> Tensor:
        """[n, dim]."""
        if self._table is None or self._table.shape[0] < n or self._table.device != device:
            if traced():  # a table made here would be of traced or fake tensors
                return rotation(torch.arange(n, device=device), self.dim, self.base)
            self._grow(n, device)
        return self._table[:n]

    def at(self, positions: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        """[..., dim] for `positions` [...] below n, in `dtype`."""
        if dtype != torch.float32:
            return rotation(positions, self.dim, self.base, dtype)
        return self.upto(n, positions.device)[positions]

    def _grow(self, n: int, device: torch.device) -> None:
        if self._table is not None:
            self._outgrown.append(self._table)
        with torch.inference_mode(mode=False), torch.no_grad():
            positions = torch.arange(1 << (n - 1).bit_length(), device=device)
            self._table = rotation(positions, self.dim, self.base)


def _check_even(dim: int) -> None:
    if dim % 2:
        raise ValueError(f"rotary embedding turns pairs, so the head dim must be even; it is {dim}")


def rotation_of(
    table: RotationTable, x: Tensor, positions: Tensor | None, cu_seqlens: Tensor | None, past_length: int
) -> Tensor:
    """The rotation of each token of x [B, T, dim]: [T, D] or [B, T, D], in fp32, or in fp64 if x is."""
    if positions is None and cu_seqlens is None:
        return first_rotations(table, x, past_length + x.shape[1])[past_length:]
    if positions is None:
        positions = token_positions(x.shape[1], x.device, cu_seqlens, past_length)
        wide = torch.promote_types(x.dtype, torch.float32)
        return table.at(positions, past_length + x.shape[1], wide)
    return rotation(positions, table.dim, table.base, torch.promote_types(x.dtype, torch.float32))


def first_rotations(table: RotationTable, x: Tensor, n: int) -> Tensor:
    """The rotations of positions 0 to n - 1, [n, D], in fp32, or in fp64 if x is."""
    if x.dtype != torch.float64:
        return table.upto(n, x.device)
    return rotation(torch.arange(n, device=x.device), table.dim, table.base, torch.float64)


def rotations_of_row(table: RotationTable, x: Tensor, n: int, cu_seqlens: Tensor | None) -> Tensor:
    """The rotations of a row of n tokens, of which x may be a part: [n, D], in fp32, or in fp64 if x is."""
    if cu_seqlens is None:
        return first_rotations(table, x, n)
    return table.at(token_positions(n, x.device, cu_seqlens), n, torch.promote_types(x.dtype, torch.float32))


def token_positions(
    n_tokens: int, device: torch.device, cu_seqlens: Tensor | None = None, past_length: int = 0
) -> Tensor:
    """int64 [T]: each token's place in its sequence."""
    tokens = torch.arange(past_length, past_length + n_tokens, device=device)
    if cu_seqlens is None:
        return tokens
    return tokens - sequence_start(tokens, cu_seqlens)


def sequence_start(tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The first token of each token's sequence."""
    borders = sequence_borders(len(tokens), tokens.device, cu_seqlens)
    return borders[sequence_of(tokens, borders)]
