"""Attention to a band of keys, forward and backward: the compressed branch and the sliding one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.kernels.band_kernels import dkv_kernel, dq_kernel, forward_kernel
from nsa.attention.kernels.descriptors import describable, tokens_descriptor
from nsa.attention.kernels.packing import NOT_PACKED, Packing, n_sequences, n_tiles
from nsa.attention.kernels.parts import sum_parts
from nsa.attention.kernels.tiles import (
    FULL_GRID,
    LOG2_E,
    Tile,
    band_dkv_tile,
    band_dq_tile,
    band_forward_tile,
    ceil_div,
    padded,
)


class Band(NamedTuple):
    """Which keys a query sees; all in tokens."""

    stride: int
    length: int
    window: int  # 0: no window
    past: int  # tokens before the first query
    offset: int  # tokens before the first key


def band_forward(
    q: Tensor, k: Tensor, v: Tensor, band: Band, packing: Packing | None = None, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """Attend from q [B, T, H, Dqk] to k [B, N, Hkv, Dqk] and v [B, N, Hkv, Dv], all contiguous.

    Returns the output [B, T, H, Dv] and lse [B, H, T], fp32, in base 2. A query that sees no key gets 0. With a
    `packing` the band has no past and no offset: each sequence begins anew.
    """
    batch, n_queries, heads, dim = q.shape
    n_keys, v_dim = k.shape[1], v.shape[3]
    out = q.new_empty(batch, n_queries, heads, v_dim)
    lse = q.new_empty(batch, heads, n_queries, dtype=torch.float32)
    described = describable(q, k, v, packing)
    tile = tile or band_forward_tile(max(padded(dim), padded(v_dim)), q.dtype, described)
    grid = (batch * heads, n_tiles(n_queries, tile.rows, packing))
    forward_kernel[grid](
        *_tiles((q,), tile.rows, described), *_tiles((k, v), tile.columns, described), out, lse, *(packing or NOT_PACKED), n_queries, n_keys, band.past, band.offset, band.window,
        dim**-0.5 * LOG2_E, n_sequences(packing), **_constants(q, k, v, band, packing),
        DESCRIBED=described, ROWS=tile.rows, COLUMNS=tile.columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, lse


def band_dq(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, lse: Tensor, dot: Tensor, dq: Tensor, band: Band,
    packing: Packing | None = None, *, add: bool, tile: Tile | None = None,
) -> None:  # fmt: skip
    """Write the gradient of q into `dq`, or `add` it to what is there.

    `lse` and `dot` [B, H, T] are those of `gates.gate_backward`: with the gate in them, `dout` is the gradient
    of the gated sum.
    """
    batch, n_queries, heads, dim = q.shape
    described = describable(q, k, v, packing, dout)
    tile = tile or band_dq_tile(max(padded(dim), padded(v.shape[3])), q.dtype, described)
    rows = _tiles((q, dout), tile.rows, described)
    grid = (batch * heads, n_tiles(n_queries, tile.rows, packing))
    dq_kernel[grid](
        rows[0], *_tiles((k, v), tile.columns, described), rows[1], lse, dot, dq, *(packing or NOT_PACKED), n_queries,
        k.shape[1], band.past, band.offset, band.window, dim**-0.5, dim**-0.5 * LOG2_E, n_sequences(packing),
        **_constants(q, k, v, band, packing), DESCRIBED=described, ADD=add, ROWS=tile.rows, COLUMNS=tile.columns,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def band_dkv(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, lse: Tensor, dot: Tensor, band: Band,
    packing: Packing | None = None, tile: Tile | None = None, parts: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of k and v; `lse` and `dot` as in `band_dq`.

    `parts` splits the heads of a group and the queries, so that few keys still fill the GPU.
    """
    batch, n_queries, heads, dim = q.shape
    n_keys, kv_heads, v_dim = k.shape[1], k.shape[2], v.shape[3]
    if n_keys == 0:
        return torch.empty_like(k), torch.empty_like(v)
    described = describable(q, k, v, packing, dout)
    tile = tile or band_dkv_tile(max(padded(dim), padded(v_dim)), q.dtype, described)
    tiles = n_tiles(n_keys, tile.columns, packing)
    group = heads // kv_heads
    head_parts, query_parts = parts or _parts(batch * kv_heads * tiles, group, n_queries, band)
    heads_each = ceil_div(group, head_parts)
    head_parts = ceil_div(group, heads_each)
    n_parts = head_parts * query_parts
    dtype = torch.float32 if n_parts > 1 else k.dtype
    empty = torch.empty if packing is None else torch.zeros  # no program writes unused slots of a packed row
    dk = empty(n_parts, *k.shape, dtype=dtype, device=k.device)
    dv = empty(n_parts, *v.shape, dtype=dtype, device=v.device)
    rows = _tiles((q, dout), tile.rows, described)
    dkv_kernel[(batch * kv_heads * head_parts, tiles, query_parts)](
        rows[0], *_tiles((k, v), tile.columns, described), rows[1], lse, dot, dk, dv, *(packing or NOT_PACKED), n_queries, n_keys, band.past,
        band.offset, band.window, dim**-0.5, dim**-0.5 * LOG2_E, ceil_div(n_queries, query_parts),
        n_sequences(packing), **_constants(q, k, v, band, packing), DESCRIBED=described, HEADS_EACH=heads_each,
        HEAD_PARTS=head_parts, ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
    if n_parts == 1:
        return dk[0], dv[0]
    return sum_parts(dk, dv, k, v)


def _parts(programs: int, group: int, n_queries: int, band: Band) -> tuple[int, int]:
    """Into how many parts to split heads and queries.

    A windowed key is seen by few queries, so it is never split over them, and it has so many keys that slabs
    for every head would take gigabytes.
    """
    wanted = ceil_div(FULL_GRID, programs)
    if band.window:
        return min(group, wanted), 1
    head_parts = min(group, 4 * wanted)  # the programs of early keys are the longest: shorter ones balance
    return head_parts, max(1, min(ceil_div(2 * wanted, head_parts), n_queries // 1024))


def _constants(q: Tensor, k: Tensor, v: Tensor, band: Band, packing: Packing | None) -> dict[str, int | bool]:
    return {
        "H": q.shape[2], "GROUP": q.shape[2] // k.shape[2], "D": q.shape[3], "DP": padded(q.shape[3]),
        "DV": v.shape[3], "DVP": padded(v.shape[3]), "STRIDE": band.stride, "LENGTH": band.length,
        "WINDOWED": band.window > 0, "PACKED": packing is not None,
    }  # fmt: skip


def _tiles(tensors: tuple[Tensor, ...], rows: int, described: bool) -> tuple[object, ...]:
    """What a kernel takes tiles of: tensors [B, T, H, D], or descriptors of them."""
    return tuple(tokens_descriptor(x, rows) for x in tensors) if described else tensors
