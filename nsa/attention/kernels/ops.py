"""The kernels as torch custom ops: traced by torch.compile without a break, with the backward written out.

Selection stands alone: activation checkpointing may save its result (`nsa::select_blocks` is the name for a
policy), and nothing else decides which blocks a query sees. In eager mode, where nobody looks for operators,
`nodes` does the same with less Python and less memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.blocks import packed_borders
from nsa.attention.inputs import BRANCHES, BranchKV
from nsa.attention.kernels import nodes
from nsa.attention.kernels.branches import (
    BLOCKS,
    COMPRESSED,
    Lengths,
    branches_backward,
    chosen_forward,
    compressed_forward,
    packing,
    sliding_forward,
)
from nsa.attention.kernels.gates import gate_backward, gated_sum
from nsa.attention.kernels.selection import Selection, select
from nsa.config import AttentionConfig


@torch.library.custom_op("nsa::compressed_attention", mutates_args=())
def compressed_attention(
    q: Tensor, k: Tensor, v: Tensor, stride: int, length: int, past: int, borders: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, Dv] and lse [B, H, T] of the compressed branch; no gradient (see `gated_attention`).

    `borders` are those of `blocks.packed_borders`, for a packed row.
    """
    return compressed_forward(q, k, v, Lengths(stride, length, 0, 0, past), borders)


@compressed_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, stride: int, length: int, past: int, borders: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return _fake_branch(q, v)


@torch.library.custom_op("nsa::select_blocks", mutates_args=())
def select_blocks(
    q: Tensor, k: Tensor, lse: Tensor, stride: int, length: int, block: int, count: int, initial: int,
    local: int, past: int, borders: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """int32 [B, Hkv, T, n]: as `nsa.attention.selected.select_blocks`, from the lse of the compressed branch."""
    lengths = Selection(stride, length, block, count, initial, local)
    first_blocks = None if borders is None else borders[BLOCKS]
    return select(q, k, lse, lengths, past, packing(borders, COMPRESSED), first_blocks)


@select_blocks.register_fake
def _(
    q: Tensor, k: Tensor, lse: Tensor, stride: int, length: int, block: int, count: int, initial: int,
    local: int, past: int, borders: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return q.new_empty(q.shape[0], k.shape[2], q.shape[1], count, dtype=torch.int32)


@torch.library.custom_op("nsa::gated_attention", mutates_args=())
def gated_attention(
    q: Tensor,
    k_compressed: Tensor | None,
    k_selected: Tensor | None,
    k_sliding: Tensor | None,
    v_compressed: Tensor | None,
    v_selected: Tensor | None,
    v_sliding: Tensor | None,
    gates: Tensor,
    compressed: Tensor | None,
    compressed_lse: Tensor | None,
    blocks: Tensor | None,
    stride: int,
    length: int,
    block: int,
    window: int,
    past: int,
    borders: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gated sum of the branches whose v is given, then output and lse of the selected and the sliding one.

    `compressed` and its lse are what `compressed_attention` gave for these inputs. They carry no gradient
    of their own: the backward of this op is that of all branches, compressed attention included. No `blocks`
    means that every query selects all it may. A branch that is not there has empty outputs.
    """
    lengths = Lengths(stride, length, block, window, past)
    selected, selected_lse = q.new_empty(0), q.new_empty(0)
    sliding, sliding_lse = q.new_empty(0), q.new_empty(0)
    if v_selected is not None:
        selected, selected_lse = chosen_forward(q, k_selected, v_selected, blocks, lengths, borders)
    if v_sliding is not None:
        sliding, sliding_lse = sliding_forward(q, k_sliding, v_sliding, lengths, borders)
    present = (v_compressed, v_selected, v_sliding)
    outs = [
        o if v is not None else None for o, v in zip((compressed, selected, sliding), present, strict=True)
    ]
    return gated_sum(outs, gates), selected, selected_lse, sliding, sliding_lse


@gated_attention.register_fake
def _(
    q, k_compressed, k_selected, k_sliding, v_compressed, v_selected, v_sliding, gates, compressed,
    compressed_lse, blocks, stride, length, block, window, past, borders=None,
):  # fmt: skip
    empty = q.new_empty(0), q.new_empty(0)
    v = next(v for v in (v_compressed, v_selected, v_sliding) if v is not None)
    selected = empty if v_selected is None else _fake_branch(q, v_selected)
    sliding = empty if v_sliding is None else _fake_branch(q, v_sliding)
    return (_fake_branch(q, v)[0], *selected, *sliding)


@torch.library.custom_op("nsa::gates_backward", mutates_args=())
def gates_backward(
    dout: Tensor, outs: list[Tensor | None], lses: list[Tensor | None], gates: Tensor
) -> tuple[Tensor, Tensor]:
    """As `gates.gate_backward`; an op of its own, so that the branches' outputs are free after it."""
    return gate_backward(dout, outs, lses, gates)


@gates_backward.register_fake
def _(dout, outs, lses, gates):
    batch, n_queries, heads, _ = dout.shape
    return torch.empty_like(gates), dout.new_empty(2, 3, batch, heads, n_queries, dtype=torch.float32)


@torch.library.custom_op("nsa::branches_backward", mutates_args=())
def _branches_backward(
    dout: Tensor,
    q: Tensor,
    k: list[Tensor | None],
    v: list[Tensor | None],
    stats: Tensor,
    blocks: Tensor | None,
    stride: int,
    length: int,
    block: int,
    window: int,
    past: int,
    borders: Tensor | None = None,
) -> list[Tensor]:
    """As `branches.branches_backward`: dq, three dk, three dv; empty for a branch that is not there."""
    lengths = Lengths(stride, length, block, window, past)
    dq, dk, dv = branches_backward(dout, q, k, v, stats, blocks, lengths, borders)
    return [dq, *(q.new_empty(0) if x is None else x for x in (*dk, *dv))]


@_branches_backward.register_fake
def _(dout, q, k, v, stats, blocks, stride, length, block, window, past, borders=None):
    dk = [q.new_empty(0) if b is None else torch.empty_like(a) for a, b in zip(k, v, strict=True)]
    dv = [q.new_empty(0) if b is None else torch.empty_like(b) for b in v]
    return [torch.empty_like(q), *dk, *dv]


def _save(ctx, inputs, output) -> None:
    *tensors, stride, length, block, window, past, borders = inputs
    ctx.save_for_backward(*tensors, *output[1:], borders)
    ctx.lengths = stride, length, block, window, past
    ctx.set_materialize_grads(False)


def _backward(ctx, dout, *_):
    q, *rest = ctx.saved_tensors
    k, v = rest[:3], rest[3:6]
    gates, compressed, compressed_lse, blocks, selected, selected_lse, sliding, sliding_lse, borders = rest[
        6:
    ]
    nothing = (None,) * 17
    if dout is None:
        return nothing
    outs, lses = (compressed, selected, sliding), (compressed_lse, selected_lse, sliding_lse)
    outs, lses = (
        [x if present is not None else None for x, present in zip(each, v, strict=True)]
        for each in (outs, lses)
    )
    dout = dout.contiguous()
    dgates, stats = gates_backward(dout, outs, lses, gates)
    dq, *dkv = _branches_backward(dout, q, k, v, stats, blocks, *ctx.lengths, borders)
    dkv = [None if v[i % 3] is None else grad for i, grad in enumerate(dkv)]
    return (dq, *dkv, dgates, *nothing[8:])


gated_attention.register_autograd(_backward, setup_context=_save)


def attend(
    q: Tensor,
    k: BranchKV,
    v: BranchKV,
    gates: Tensor,
    config: AttentionConfig,
    cu_seqlens: Tensor | None = None,
    past_length: int = 0,
) -> Tensor:
    """Eq. 5 by these ops; arguments and result as in `nsa_attention`."""
    borders = None if cu_seqlens is None else packed_borders(config, q.shape[1], cu_seqlens.to(q.device))
    q, gates = q.contiguous(), gates.contiguous()
    k, v = (BranchKV(*(x if x is None else x.contiguous() for x in each)) for each in (k, v))
    lengths = Lengths(
        config.compress_stride, config.compress_block, config.select_block, config.window, past_length
    )
    # While all blocks fit into the n, every query selects all it may: dense attention, and nothing to choose.
    chooses = past_length + q.shape[1] > config.select_count * config.select_block
    selection = _selection(config) if chooses and "selected" in config.branches else None
    scoring = None if selection is None else k.compressed.detach()
    k, v = (
        [x if branch in config.branches else None for branch, x in zip(BRANCHES, each, strict=True)]
        for each in (k, v)
    )
    if nodes.serve(q, *k, *v, gates):
        return nodes.attend(q, k, v, gates, scoring, selection, lengths, borders)
    return _attend(q, k, v, gates, scoring, selection, lengths, borders)


def _attend(
    q: Tensor,
    k: list[Tensor | None],
    v: list[Tensor | None],
    gates: Tensor,
    scoring: Tensor | None,
    selection: Selection | None,
    lengths: Lengths,
    borders: Tensor | None,
) -> Tensor:
    """As `nodes.attend`, by the ops."""
    compressed = lse = blocks = None
    block_lengths = lengths.stride, lengths.length, lengths.past
    if v[0] is not None:
        compressed, lse = compressed_attention(
            q.detach(), k[0].detach(), v[0].detach(), *block_lengths, borders
        )
    if selection is not None:
        if lse is None:
            lse = compressed_attention(q.detach(), scoring, scoring, *block_lengths, borders)[1]
        blocks = select_blocks(q.detach(), scoring, lse, *selection, lengths.past, borders)
    return gated_attention(q, *k, *v, gates, compressed, lse, blocks, *lengths, borders)[0]


def _selection(config: AttentionConfig) -> Selection:
    return Selection(
        config.compress_stride, config.compress_block, config.select_block, config.select_count,
        config.initial_blocks, config.local_blocks,
    )  # fmt: skip


def _fake_branch(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch, n_queries, heads, _ = q.shape
    out = q.new_empty(batch, n_queries, heads, v.shape[3])
    return out, q.new_empty(batch, heads, n_queries, dtype=torch.float32)
