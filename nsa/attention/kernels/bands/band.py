"""Attention to bands of keys, forward and backward, every kernel launched once for all branches that are bands.

The compressed and the sliding branch are bands. So is the selected one while every query selects all blocks, or most of
them; in the second case a word of bits says which. Lists of keys, values and results are in the order of BRANCHES, with
None for a branch that is not there, or no band.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.kernels.bands.band_dkv_kernels import dkv_kernel
from nsa.attention.kernels.bands.band_kernels import Band, Shape, dq_kernel, forward_kernel
from nsa.attention.kernels.descriptors import describable, tokens_descriptor
from nsa.attention.kernels.packing import COMPRESSED, TOKENS, n_sequences, n_tiles
from nsa.attention.kernels.parts import sum_parts
from nsa.attention.kernels.tiles import (
    FULL_GRID,
    LOG2_E,
    ONE_WAVE,
    TOGETHER,
    Tile,
    band_dkv_tile,
    band_dq_tile,
    band_forward_tile,
    ceil_div,
    padded,
)

PerBranch = Sequence[Tensor | None]


class Lengths(NamedTuple):
    """The lengths of `AttentionConfig` that attention depends on, and the number of earlier tokens; all in tokens."""

    stride: int
    length: int
    block: int
    window: int
    past: int


class Sizes(NamedTuple):
    """The sizes that every kernel takes, in its order: tokens, and keys of each branch."""

    n_queries: int
    n_compressed: int
    n_selected: int
    n_sliding: int
    past: int
    offset: int  # tokens before the first key of the sliding branch, whose k may hold the newest tokens only
    window: int


class Share(NamedTuple):
    """The division of one branch's tiles, heads and queries over the programs for the gradients of its keys."""

    tiles: int = 0
    head_parts: int = 0
    heads_each: int = 0
    queries_each: int = 0


class Forward(NamedTuple):
    """The forward result of bands: outputs [B, T, H, Dv], and lse [B, H, T], fp32, in base 2."""

    outs: list[Tensor | None]
    lses: list[Tensor | None]


def bands_forward(
    q: Tensor,
    k: PerBranch,
    v: PerBranch,
    lengths: Lengths,
    borders: Tensor | None = None,
    tile: Tile | None = None,
) -> Forward:
    """Attend from q [B, T, H, Dqk] to each k [B, N, Hkv, Dqk] and v [B, N, Hkv, Dv], all contiguous.

    A query that sees no key gets 0. `borders` are those of `blocks.packed_borders`, for a packed row: its
    sequences have no past.
    """
    result = Forward([None] * 3, [None] * 3)
    for i, x in enumerate(v):
        if x is not None:
            result.outs[i], result.lses[i] = _room(q, x)
    _forward(q, k, v, result, lengths, borders, tile=tile)
    return result


def chosen_band_forward(
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor, lengths: Lengths, others: PerBranch, gates: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gated sum of the selected branch, by the `bits` [B, Hkv, T] of `choose.select_few`, and the `others`' outputs,
    by `gates` [B, T, H, 3]; then that branch's output and lse."""
    out, lse = _room(q, v)
    total = torch.empty_like(out)
    result = Forward([others[0], out, others[2]], [None, lse, None])
    _forward(q, (None, k, None), (None, v, None), result, lengths, None, bits, gates, total)
    return total, out, lse


def bands_dq(
    q: Tensor, k: PerBranch, v: PerBranch, dout: Tensor, stats: Tensor, lengths: Lengths, borders: Tensor | None = None,
    bits: Tensor | None = None, tile: Tile | None = None,
) -> Tensor:  # fmt: skip
    """The contribution of the bands to the gradient of q.

    `stats` [2, 3, B, H, T] are those of `gates.gate_backward`: with the gates in them, `dout` is the gradient of the
    gated sum.
    """
    batch, n_queries, heads, dim = q.shape
    v_dim = dout.shape[3]
    dq = torch.empty_like(q)
    described = describable(q, *k, *v, dout)
    tile = tile or band_dq_tile(max(padded(dim), padded(v_dim)), q.dtype, described)
    rows = _tiles((q, dout), tile.rows, described)
    keys, values = (_tiles(x, tile.columns, described) for x in (k, v))
    dq_kernel[(batch * heads, n_tiles(n_queries, tile.rows, borders))](
        rows[0], *_by_branch(keys, values), rows[1], stats, dq, borders, bits, *_sizes(q, k, lengths), dim**-0.5,
        dim**-0.5 * LOG2_E, batch * heads * n_queries, n_sequences(borders),
        **_constants(q, k, v_dim, lengths, borders, bits, described, tile),
    )  # fmt: skip
    return dq


def bands_dkv(
    q: Tensor, k: PerBranch, v: PerBranch, dout: Tensor, stats: Tensor, lengths: Lengths, borders: Tensor | None = None,
    bits: Tensor | None = None, tile: Tile | None = None, parts: tuple[int, int] | None = None,
) -> tuple[list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """The gradients of keys and values; `stats` as in `bands_dq`.

    `parts` splits the heads of a group and the queries, so that few keys still fill the GPU.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads = next(x for x in k if x is not None).shape[2]
    v_dim, group, lists = dout.shape[3], heads // kv_heads, batch * kv_heads
    # In a packed row every tile of queries would need a mask against those of the next sequence.
    described = borders is None and describable(q, *k, *v, dout)
    tile = tile or band_dkv_tile(max(padded(dim), padded(v_dim)), q.dtype, described)
    empty = torch.empty if borders is None else torch.zeros  # no program writes unused slots of a packed row
    dk: list[Tensor | None] = [None] * 3
    dv: list[Tensor | None] = [None] * 3
    shares, programs = [Share()] * 3, [0] * 3
    for i, keys in enumerate(k):
        if keys is None:
            continue
        tiles = n_tiles(keys.shape[1], tile.columns, borders) if keys.shape[1] else 0
        head_parts, query_parts = parts or _parts(lists * tiles, group, n_queries, i, chosen=bits is not None)
        heads_each = ceil_div(group, head_parts)
        head_parts = ceil_div(group, heads_each)
        n_parts = head_parts * query_parts
        dtype = torch.float32 if n_parts > 1 else keys.dtype
        dk[i] = empty((n_parts, *keys.shape), dtype=dtype, device=q.device)
        dv[i] = empty((n_parts, *keys.shape[:3], v_dim), dtype=dtype, device=q.device)
        queries_each = ceil_div(ceil_div(n_queries, query_parts), tile.rows) * tile.rows
        shares[i] = Share(tiles, head_parts, heads_each, queries_each)
        programs[i] = lists * ceil_div(tiles, TOGETHER) * TOGETHER * n_parts
    rows = _tiles((q, dout), tile.rows, described)
    keys_of, values_of = (_tiles(x, tile.columns, described) for x in (k, v))
    if sum(programs):
        dkv_kernel[(sum(programs),)](
            rows[0], *_by_branch(keys_of, values_of, dk, dv), rows[1], stats, borders, bits, *_sizes(q, k, lengths),
            dim**-0.5, dim**-0.5 * LOG2_E, batch * heads * n_queries, n_sequences(borders), lists,
            programs[1], *shares[1], programs[1] + programs[0], *shares[0], *shares[2],
            **_constants(q, k, v_dim, lengths, borders, bits, described, tile), TOGETHER=TOGETHER,
        )  # fmt: skip
    return sum_parts(dk, dv, k, v)


def _parts(programs: int, group: int, n_queries: int, branch: int, *, chosen: bool) -> tuple[int, int]:
    """The numbers of parts that heads and queries are split into.

    A windowed key is seen by few queries, so it is never split over them, and it has so many keys that slabs
    for every head would take gigabytes. A selected branch with bits (`chosen`) gets one wave of programs: those of the
    other branches fill the rest of the GPU, and more parts would cost more in slabs than they gain.
    """
    if chosen and branch == 1:
        wanted = ceil_div(ONE_WAVE, max(1, programs))
        head_parts = next(x for x in range(1, group + 1) if group % x == 0 and (x >= wanted or x == group))
        return head_parts, max(1, min(wanted // head_parts, n_queries // 256))
    wanted = ceil_div(FULL_GRID, max(1, programs))
    if branch == 2:
        return min(group, wanted), 1
    head_parts = min(group, 8 * wanted)  # programs of early keys take longest: more parts balance the load
    return head_parts, max(1, min(ceil_div(2 * wanted, head_parts), n_queries // 1024))


def _forward(
    q: Tensor, k: PerBranch, v: PerBranch, result: Forward, lengths: Lengths, borders: Tensor | None = None,
    bits: Tensor | None = None, gates: Tensor | None = None, total: Tensor | None = None, tile: Tile | None = None,
) -> None:  # fmt: skip
    batch, n_queries, heads, dim = q.shape
    outs, lses = result
    v_dim = next(x for x in v if x is not None).shape[3]
    described = describable(q, *k, *v)
    tile = tile or band_forward_tile(max(padded(dim), padded(v_dim)), q.dtype, described)
    (rows,) = _tiles((q,), tile.rows, described)
    keys, values = (_tiles(x, tile.columns, described) for x in (k, v))
    bands = sum(x is not None for x in v)
    forward_kernel[(batch * heads, n_tiles(n_queries, tile.rows, borders), bands)](
        rows, *_by_branch(keys, values, outs, lses), borders, bits, gates, total, *_sizes(q, k, lengths),
        dim**-0.5 * LOG2_E, n_sequences(borders),
        **_constants(q, k, v_dim, lengths, borders, bits, described, tile),
    )  # fmt: skip


def _constants(
    q: Tensor, k: PerBranch, v_dim: int, lengths: Lengths, borders: Tensor | None, bits: Tensor | None, described: bool,
    tile: Tile,
) -> dict[str, object]:  # fmt: skip
    heads, dim = q.shape[2:]
    group = heads // next(x for x in k if x is not None).shape[2]
    shape = Shape(
        heads, group, dim, padded(dim), v_dim, padded(v_dim), borders is not None, described, tile.rows, tile.columns,
        tile.held,
    )  # fmt: skip
    return {
        "COMPRESSED": Band(lengths.stride, lengths.length, COMPRESSED, False, 0),
        "SELECTED": Band(1, 1, TOKENS, False, 0 if bits is None else lengths.block),
        "WINDOW": Band(1, 1, TOKENS, True, 0),
        "SHAPE": shape, "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip


def _room(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch, n_queries, heads, _ = q.shape
    out = q.new_empty(batch, n_queries, heads, v.shape[3])
    return out, q.new_empty(batch, heads, n_queries, dtype=torch.float32)


def _sizes(q: Tensor, k: PerBranch, lengths: Lengths) -> Sizes:
    n_queries, n_keys = q.shape[1], [0 if x is None else x.shape[1] for x in k]
    offset = 0 if k[2] is None else lengths.past + n_queries - n_keys[2]
    return Sizes(n_queries, *n_keys, lengths.past, offset, lengths.window)


def _by_branch(*lists: Sequence[object]) -> list[object]:
    """The entries of all lists for the first branch, then for the second, then for the third."""
    return [x for branch in zip(*lists, strict=True) for x in branch]


def _tiles(tensors: PerBranch, rows: int, described: bool) -> Sequence[object]:
    """Tensors [B, T, H, D] as a kernel takes them: as they are, or as descriptors of tiles of `rows` tokens."""
    return [x if x is None else tokens_descriptor(x, rows) for x in tensors] if described else tensors
