"""Attention to the selected blocks, forward and backward.

Forward and dQ: one program takes neighbouring tokens with all heads of a group, against the union of the
tokens' blocks; a bit mask says which token selected a block. dK and dV: one program takes a block and a
chunk of the tokens that selected it, from the lists of `lists.py`; the chunks of a block are summed
in order afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.kernels.descriptors import describable, is_hopper, tokens_descriptor
from nsa.attention.kernels.gather_kernels import (
    dkv_kernel,
    dq_kernel,
    forward_kernel,
    sum_chunks_kernel,
    unions_kernel,
)
from nsa.attention.kernels.lists import lists_of_tokens
from nsa.attention.kernels.packing import BLOCKS, n_sequences, n_slabs, n_tiles, rows_of
from nsa.attention.kernels.tiles import (
    LOG2_E,
    ceil_div,
    padded,
    power_of_two,
    selected_dkv_launch,
    selected_dq_launch,
    selected_launch,
    tokens_per_chunk,
    tokens_per_tile,
)


class Unions(NamedTuple):
    """Per tile of neighbouring tokens, the blocks that any of them selected, ascending."""

    block: Tensor  # int32 [B * Hkv, tiles, tokens * n]
    tokens: Tensor  # int32, bit i: token i of the tile selected the block
    count: Tensor  # int32 [B * Hkv, tiles]


def union_room(q: Tensor, blocks: Tensor, borders: Tensor | None) -> Unions:
    """The buffer for the forward's unions of `blocks`."""
    group = int(q.shape[2]) // int(blocks.shape[1])  # a number, also where shapes are symbols
    return _room(blocks, tokens_per_tile(group, q.dtype), borders)


def _room(blocks: Tensor, tokens: int, borders: Tensor | None) -> Unions:
    batch, kv_heads, n_queries, count = blocks.shape
    lists, tiles = batch * kv_heads, n_tiles(n_queries, tokens, borders)
    block = blocks.new_empty(lists, tiles, tokens * count)
    return Unions(block, torch.empty_like(block), blocks.new_empty(lists, tiles))


def unions(blocks: Tensor, tokens: int, borders: Tensor | None = None) -> Unions:
    """The union of the `blocks` [B, Hkv, T, n], int32, of every `tokens` neighbouring tokens of a sequence."""
    _, _, n_queries, count = blocks.shape
    union = _room(blocks, tokens, borders)
    lists, tiles = union.count.shape
    count_p = power_of_two(count)
    unions_kernel[(tiles, lists)](
        blocks, *union, rows_of(borders, BLOCKS)[0], n_queries, n_sequences(borders), COUNT=count,
        COUNT_P=count_p, TOKENS_P=tokens, PACKED=borders is not None,
        num_warps=max(1, min(4, tokens * count_p // 128)),
    )  # fmt: skip
    return union


class Selected(NamedTuple):
    """The result of the forward pass."""

    out: Tensor  # [B, T, H, Dv]
    lse: Tensor  # [B, H, T], fp32, in base 2
    union: Unions  # what the gradient of q needs of the blocks
    total: Tensor | None  # the gated sum, if gates were given


def selected_forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, block: int, past: int, borders: Tensor | None = None,
    others: Sequence[Tensor | None] = (None, None, None), gates: Tensor | None = None, tokens: int | None = None,
) -> Selected:  # fmt: skip
    """Attend from q [B, T, H, Dqk] to the `blocks` of `block` keys each in k and v [B, S, Hkv, D].

    All are contiguous; `blocks` [B, Hkv, T, n] is int32. Given `gates` [B, T, H, 3], also the gated sum of the output
    and the `others`, which are in the order of BRANCHES. `borders` are those of a packed row.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads = k.shape[2]
    tokens = tokens or tokens_per_tile(heads // kv_heads, q.dtype)
    out = q.new_empty(batch, n_queries, heads, v.shape[3])
    lse = q.new_empty(batch, heads, n_queries, dtype=torch.float32)
    total = None if gates is None else torch.empty_like(out)
    constants = _constants(q, k, v, block, blocks.shape[3])
    described = block == constants["BLOCK_P"] and describable(q, borders, k, v)
    warps, stages = selected_launch(max(constants["DP"], constants["DVP"]), described)
    union = unions(blocks, tokens, borders)
    forward_kernel[(union.block.shape[1], batch * kv_heads)](
        q, *_described(k, v, block, described), out, lse, *union, others[0], others[2], gates, total,
        *rows_of(borders, BLOCKS), n_queries, k.shape[1], past, dim**-0.5 * LOG2_E, n_sequences(borders), **constants,
        PACKED=borders is not None, DESCRIBED=described, GATED=total is not None, HAS_C=others[0] is not None,
        HAS_W=others[2] is not None, TOKENS_P=tokens, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return Selected(out, lse, union, total)


def selected_dq(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, stats: Tensor, dq: Tensor, union: Unions, count: int,
    block: int, past: int, borders: Tensor | None = None, *, add: bool,
) -> None:  # fmt: skip
    """Write the gradient of q into `dq`, or `add` it; `stats` as in `band.bands_dq`.

    `union` is what the forward gave for blocks of `count` a query.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads, tiles = k.shape[2], union.block.shape[1]
    constants = _constants(q, k, v, block, count)
    described = block == constants["BLOCK_P"] and describable(q, borders, k, v)
    warps, stages = selected_dq_launch(max(constants["DP"], constants["DVP"]), described)
    dq_kernel[(tiles, batch * kv_heads)](
        q, *_described(k, v, block, described), dout, stats, dq, *union, *rows_of(borders, BLOCKS), n_queries, k.shape[1], past,
        dim**-0.5, dim**-0.5 * LOG2_E, batch * heads * n_queries, n_sequences(borders), **constants, PACKED=borders is not None,
        DESCRIBED=described, TOKENS_P=union.block.shape[2] // count, ADD=add, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def selected_dkv(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, stats: Tensor, blocks: Tensor, block: int, past: int,
    borders: Tensor | None = None, chunk: int | None = None, tokens: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of k and v; `stats` as in `band.bands_dq`."""
    batch, n_queries, heads, dim = q.shape
    n_keys, kv_heads, v_dim = k.shape[1:3] + v.shape[3:]
    n_blocks = n_tiles(n_keys, block, borders)
    n_lists = batch * kv_heads * n_blocks
    chunk = chunk or tokens_per_chunk(n_queries)
    constants = _constants(q, k, v, block, blocks.shape[3])
    dim_p = max(constants["DP"], constants["DVP"])
    rows, warps, stages = selected_dkv_launch(dim_p, q.dtype, is_hopper(q.device))
    tokens = tokens or max(1, rows // constants["GROUP_P"])
    listed, starts = lists_of_tokens(blocks, n_blocks)
    # A bound on the slabs that `first_slab` gives, which needs no look at the data.
    slabs = n_slabs(blocks.numel(), n_lists, chunk)
    dk_parts = q.new_empty(slabs, block, dim, dtype=torch.float32)
    dv_parts = q.new_empty(slabs, block, v_dim, dtype=torch.float32)
    dkv_kernel[(slabs,)](
        q, k, v, dout, stats, dk_parts, dv_parts, listed, starts, *rows_of(borders, BLOCKS), n_queries,
        n_keys, past, n_blocks, n_lists, dim**-0.5, dim**-0.5 * LOG2_E, batch * heads * n_queries, n_sequences(borders), **constants,
        CHUNK=chunk, TOKENS_P=tokens, PACKED=borders is not None,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    keys = min(16, power_of_two(block))
    sum_chunks_kernel[(n_lists, ceil_div(block, keys))](
        dk_parts, dv_parts, dk, dv, starts, *rows_of(borders, BLOCKS), n_keys, n_blocks, n_sequences(borders),
        PACKED=borders is not None, KV_HEADS=kv_heads, D=dim,
        DP=power_of_two(dim), DV=v_dim, DVP=power_of_two(v_dim), BLOCK=block, CHUNK=chunk, KEYS=keys,
        num_warps=4,
    )  # fmt: skip
    return dk, dv


def _constants(q: Tensor, k: Tensor, v: Tensor, block: int, count: int) -> dict[str, int]:
    group = q.shape[2] // k.shape[2]
    return {
        "H": q.shape[2], "GROUP": group, "GROUP_P": power_of_two(group),
        "D": q.shape[3], "DP": padded(q.shape[3]), "DV": v.shape[3], "DVP": padded(v.shape[3]),
        "BLOCK": block, "BLOCK_P": padded(block), "COUNT": count,
    }  # fmt: skip


def _described(k: Tensor, v: Tensor, block: int, described: bool) -> tuple[object, object]:
    return (tokens_descriptor(k, block), tokens_descriptor(v, block)) if described else (k, v)
