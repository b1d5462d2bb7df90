"""Attention to the selected blocks, forward and backward.

Forward and dQ: one program takes neighbouring tokens with all heads of a group, against the union of the
tokens' blocks; a bit mask says which token selected a block. dK and dV: one program takes a block and a
chunk of the tokens that selected it, from the lists of `lists.py`; the chunks of a block are summed
in order afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nsa.attention.kernels.bands.band import PerBranch
from nsa.attention.kernels.descriptors import describable, is_hopper, tokens_descriptor
from nsa.attention.kernels.packing import BLOCKS, n_sequences, n_slabs, n_tiles, rows_of
from nsa.attention.kernels.selected.gather_kernels import (
    Shape,
    dkv_kernel,
    dq_kernel,
    forward_kernel,
    sum_chunks_kernel,
    unions_kernel,
)
from nsa.attention.kernels.selected.lists import lists_of_tokens
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

    block: Tensor  # int32 [B * Hkv, tiles, tokens * n], -1 from the count on
    tokens: Tensor  # int32, bit i: token i of the tile selected the block; 0 from the count on
    count: Tensor  # int32 [B * Hkv, tiles]


def union_room(q: Tensor, blocks: Tensor, borders: Tensor | None) -> Unions:
    """The buffer for the forward's unions of `blocks`."""
    group = int(q.shape[2]) // int(blocks.shape[1])  # an int, even if shapes are symbolic
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


def selected_forward(
    q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, block: int, past: int, borders: Tensor | None, others: PerBranch,
    gates: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Unions]:  # fmt: skip
    """Attend from q [B, T, H, Dqk] to the `blocks` of `block` keys each in k and v [B, S, Hkv, D].

    All are contiguous; `blocks` [B, Hkv, T, n] is int32. `borders` are those of a packed row. Returns the sum of the
    output and the `others`, which are in the order of BRANCHES, by `gates` [B, T, H, 3]; the output [B, T, H, Dv], its lse
    [B, H, T], fp32, in base 2, and the unions, which its gradients need.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads = k.shape[2]
    tokens = tokens_per_tile(heads // kv_heads, q.dtype)
    out = q.new_empty(batch, n_queries, heads, v.shape[3])
    lse = q.new_empty(batch, heads, n_queries, dtype=torch.float32)
    total = torch.empty_like(out)
    described = _blocks_describable(q, k, v, block)
    shape = _shape(q, k, v, (block, blocks.shape[3]), tokens, borders, described)
    warps, stages = selected_launch(_wider(q, v), described)
    union = unions(blocks, tokens, borders)
    forward_kernel[(union.block.shape[1], batch * kv_heads)](
        q, *_described(k, v, block, described), out, lse, *union, others[0], others[2], gates, total,
        *rows_of(borders, BLOCKS), n_queries, k.shape[1], past, dim**-0.5 * LOG2_E, n_sequences(borders), SHAPE=shape,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return total, out, lse, union


def selected_dq(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, stats: Tensor, dq: Tensor, union: Unions, count: int,
    block: int, past: int, borders: Tensor | None = None, *, add: bool,
) -> None:  # fmt: skip
    """Write the gradient of q into `dq`, or `add` it; `stats` as in `band.bands_dq`.

    `union` is that of the forward, where each query selected `count` blocks.
    """
    batch, n_queries, heads, dim = q.shape
    kv_heads, tiles = k.shape[2], union.block.shape[1]
    described = _blocks_describable(q, k, v, block)
    shape = _shape(q, k, v, (block, count), union.block.shape[2] // count, borders, described)
    warps, stages = selected_dq_launch(_wider(q, v), described)
    dq_kernel[(tiles, batch * kv_heads)](
        q, *_described(k, v, block, described), dout, stats, dq, *union, *rows_of(borders, BLOCKS), n_queries, k.shape[1], past,
        dim**-0.5, dim**-0.5 * LOG2_E, batch * heads * n_queries, n_sequences(borders), SHAPE=shape, ADD=add,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def selected_dkv(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, stats: Tensor, blocks: Tensor, block: int, past: int,
    borders: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of k and v; `stats` as in `band.bands_dq`."""
    batch, n_queries, heads, dim = q.shape
    n_keys, kv_heads, v_dim = k.shape[1:3] + v.shape[3:]
    n_blocks = n_tiles(n_keys, block, borders)
    n_lists = batch * kv_heads * n_blocks
    chunk = tokens_per_chunk(n_queries)
    rows, warps, stages = selected_dkv_launch(_wider(q, v), q.dtype, is_hopper(q.device))
    tokens = max(1, rows // power_of_two(heads // kv_heads))
    shape = _shape(q, k, v, (block, blocks.shape[3]), tokens, borders)
    listed, starts = lists_of_tokens(blocks, n_blocks)
    # An upper bound on the number of slabs, known without reading the lists.
    slabs = n_slabs(blocks.numel(), n_lists, chunk)
    dk_parts = q.new_empty(slabs, block, dim, dtype=torch.float32)
    dv_parts = q.new_empty(slabs, block, v_dim, dtype=torch.float32)
    dkv_kernel[(slabs,)](
        q, k, v, dout, stats, dk_parts, dv_parts, listed, starts, *rows_of(borders, BLOCKS), n_queries,
        n_keys, past, n_blocks, n_lists, dim**-0.5, dim**-0.5 * LOG2_E, batch * heads * n_queries, n_sequences(borders), SHAPE=shape,
        CHUNK=chunk, num_warps=warps, num_stages=stages,
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


def _shape(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: tuple[int, int],
    tokens: int,
    borders: Tensor | None,
    described: bool = False,
) -> Shape:
    """The constants of a launch; `blocks` are the keys of a block, and the number of blocks that a query selects."""
    (block, count), heads, dim, v_dim = blocks, q.shape[2], q.shape[3], v.shape[3]
    group = heads // k.shape[2]
    return Shape(
        heads, group, power_of_two(group), dim, padded(dim), v_dim, padded(v_dim), block, padded(block), count, tokens,
        borders is not None, described,
    )  # fmt: skip


def _wider(q: Tensor, v: Tensor) -> int:
    """The wider of the padded head dims."""
    return max(padded(q.shape[3]), padded(v.shape[3]))


def _blocks_describable(q: Tensor, k: Tensor, v: Tensor, block: int) -> bool:
    return block == padded(block) and describable(q, k, v)


def _described(k: Tensor, v: Tensor, block: int, described: bool) -> tuple[object, object]:
    return (tokens_descriptor(k, block), tokens_descriptor(v, block)) if described else (k, v)
