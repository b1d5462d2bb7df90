"""Tile sizes of every kernel: a fixed table, so that recomputing a forward repeats it bit for bit.

Run-time autotuning may choose another tile, and with it another order of summation, in the recomputation of
activation checkpointing. The values were measured on an H200; docs/lab/tiles.csv has the alternatives.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

LOG2_E = 1.4426950408889634

# The number of programs that fill the GPU several times; a constant, so that results do not depend on its size.
FULL_GRID = 528
# The number of programs that run at once, three on each multiprocessor.
ONE_WAVE = 384
# Tiles of keys whose programs for dK and dV start together and read the same queries.
TOGETHER = 16


# Limit of registers of the kernel that scores blocks, with descriptors: three programs then fit a multiprocessor.
SCORE_REGISTERS = 168
# Queries of a program that selects among few blocks, and for each holds a comparison of all pairs of blocks.
FEW_ROWS = 16


class Tile(NamedTuple):
    """One kernel's launch: rows and columns of its score tile, warps, stages of its software pipeline."""

    rows: int
    columns: int
    warps: int
    stages: int
    held: bool = False  # whether the gradient of q keeps dO in registers


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up. (`triton.cdiv` may also be called inside a kernel, and is slow outside.)"""
    return -(-a // b)


@lru_cache
def padded(n: int) -> int:
    """The power of two, at least 16, that a tensor-core dimension of n takes."""
    return max(16, power_of_two(n))


@lru_cache
def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def band_forward_tile(dim: int, dtype: torch.dtype, described: bool) -> Tile:
    """`dim` is the wider of the padded head dims; `described` tiles come by tensor descriptors."""
    if dtype == torch.float32:
        return Tile(32, 32, 4, 1)
    if described:
        return Tile(64, 64, 4, 3 if dim > 64 else 2)
    return Tile(64, 64, 4, 3) if dim <= 128 else Tile(64, 32, 4, 2)


def band_dq_tile(dim: int, dtype: torch.dtype, described: bool) -> Tile:
    """As `band_forward_tile`, for the gradient of q."""
    if dtype == torch.float32:
        return Tile(32, 32, 4, 1)
    if described:
        return Tile(64, 64, 4, 3, held=dim > 64)
    return Tile(64, 64, 4, 2) if dim <= 128 else Tile(64, 32, 8, 1)


def band_dkv_tile(dim: int, dtype: torch.dtype, described: bool) -> Tile:
    """As `band_forward_tile`, for the gradients of k and v: rows are queries, columns the program's keys."""
    if dtype == torch.float32:
        return Tile(32, 32, 4, 1)
    if described:
        return Tile(64, 64, 4, 2) if dim > 64 else Tile(32, 64, 4, 3)
    return Tile(32, 64, 4, 3) if dim <= 128 else Tile(32, 64, 8, 1)


def selection_tile(dim: int, dtype: torch.dtype, keys_per_block: int, described: bool) -> Tile:
    """Rows are queries, columns selection blocks, each of so many keys, a power of two."""
    if dtype == torch.float32:
        rows, keys, warps, stages = 32, 64, 4, 1
    elif dim <= 128:
        rows, keys, warps, stages = 64, 128, 4, 2 if described else 3
    else:
        rows, keys, warps, stages = 64, 64, 4, 2
    return Tile(rows, max(1, keys // keys_per_block), warps, stages)


def tokens_per_tile(group: int, dtype: torch.dtype) -> int:
    """Neighbouring tokens that share a program of the selected branch: about 64 rows with their heads.

    At most 32, as a bit mask says which of them selected a block.
    """
    rows = 16 if dtype == torch.float32 else 64
    return max(1, min(32, rows // power_of_two(group)))


def selected_launch(dim: int, described: bool) -> tuple[int, int]:
    """Warps and stages of the selected branch's forward."""
    if described:
        return (4, 3) if dim > 64 else (4, 2)
    return (4, 2) if dim <= 128 else (4, 1)


def selected_dq_launch(dim: int, described: bool) -> tuple[int, int]:
    """The same of its gradient of q: at head dim 128 a third stage would leave room for one program only."""
    return (4, 3) if described and dim <= 64 else selected_launch(dim, False)


def selected_dkv_launch(dim: int, dtype: torch.dtype, hopper: bool) -> tuple[int, int, int]:
    """Rows (tokens times heads), warps and stages of the selected branch's gradients of k and v."""
    if dtype == torch.float32 or dim > 128:
        return 32, 8, 1
    if (
        dim <= 64 and not hopper
    ):  # sm_80 holds sums in registers that sm_90 need not: 128 rows spill 10 KB of them
        return 32, 4, 3
    return (128 if dim <= 64 else 64), 4, 2


def tokens_per_chunk(n_tokens: int) -> int:
    """Longest list of tokens that one program of the selected branch's dK and dV walks."""
    return 256 if n_tokens <= 4096 else 512 if n_tokens <= 16384 else 1024
