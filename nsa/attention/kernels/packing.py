"""Packed rows inside kernels: the sequence, or the list, that a program's share belongs to, found by bisection.

Shares of SIZE entries have *slabs*: those of list s begin at slab `starts[s] // SIZE + s`, which leaves room for
rounding up every list's length, so the grid can be chosen without reading the data. No share holds
entries of two lists, so sequences packed into one row never meet in a tile: not even a NaN passes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nsa.attention.kernels.tiles import ceil_div

TOKENS, COMPRESSED, BLOCKS = range(3)  # the rows of `blocks.packed_borders`


def rows_of(borders: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """The starts of the sequences of a packed row, and the end of the last: in tokens, and in units of `keys`."""
    return (None, None) if borders is None else (borders[TOKENS], borders[keys])


@triton.jit
def first_slab(STARTS, number, SIZE: tl.constexpr):
    """The first slab of the shares of list `number`."""
    return tl.load(STARTS + number) // SIZE + number


@triton.jit
def list_of_slab(STARTS, slab, n_lists, SIZE: tl.constexpr):
    """The last list whose shares begin at or before `slab`."""
    low, high = slab * 0, slab * 0 + n_lists - 1
    while low < high:
        middle = (low + high + 1) // 2
        before = first_slab(STARTS, middle, SIZE) <= slab
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle - 1)
    return low


@triton.jit
def list_of_entry(STARTS, entry, n_lists):
    """The last list that starts at or before `entry`: the one that holds it, as empty lists come before."""
    low, high = entry * 0, entry * 0 + n_lists - 1
    while low < high:
        middle = (low + high + 1) // 2
        before = tl.load(STARTS + middle) <= entry
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle - 1)
    return low


@triton.jit
def tile_of_slab(STARTS, OTHER, slab, n_lists, SIZE: tl.constexpr):
    """The first entry of the slab's tile, then where its list starts and ends, in STARTS and in OTHER."""
    number = list_of_slab(STARTS, slab, n_lists, SIZE)
    start, end = tl.load(STARTS + number), tl.load(STARTS + number + 1)
    first = start + (slab - first_slab(STARTS, number, SIZE)) * SIZE
    return first, start, end, tl.load(OTHER + number), tl.load(OTHER + number + 1)


def n_slabs(n_entries: int, n_lists: int, size: int) -> int:
    """An upper bound on the slabs of `size` that the entries take, however they are divided among lists."""
    return n_entries // size + n_lists


def n_tiles(n: int, size: int, borders: Tensor | None) -> int:
    """The number of tiles that n tokens or keys take; an upper bound if they are packed."""
    return ceil_div(n, size) if borders is None else n_slabs(n, n_sequences(borders), size)


def n_sequences(borders: Tensor | None) -> int:
    """The number of sequences in a row."""
    return 1 if borders is None else borders.shape[-1] - 1
