"""The kernels as torch custom operators with explicit backward, which torch.compile traces without a graph break.

Selection is an operator of its own, `nsa::select_blocks`, so that a policy of selective activation checkpointing can
save its result. Eager mode uses the autograd function of `node` instead, which costs less Python.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.blocks import packed_borders
from nsa.attention.inputs import BRANCHES, BranchKV, Call
from nsa.attention.kernels.bands.band import Lengths
from nsa.attention.kernels.branches import (
    branches_backward,
    choose,
    chosen_forward,
    few_blocks,
    first_forward,
    gradients,
)
from nsa.attention.kernels.gates import gate_backward, gated_sum
from nsa.attention.kernels.node import Attention, suffices
from nsa.attention.kernels.selected.choose import Selection
from nsa.attention.kernels.selected.gather import union_room
from nsa.config import AttentionConfig


# Of an operator that takes or returns lists the schema is written out: torch 2.6 infers none from `list[...]`.
@torch.library.custom_op(
    "nsa::band_attention",
    mutates_args=(),
    schema="(Tensor q, Tensor?[] k, Tensor?[] v, Tensor? scoring, SymInt stride, SymInt length, SymInt block,"
    " SymInt window, SymInt past, Tensor? borders=None) -> Tensor[]",
)
def band_attention(
    q: Tensor, k: list[Tensor | None], v: list[Tensor | None], scoring: Tensor | None, stride: int, length: int,
    block: int, window: int, past: int, borders: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """The operator of `branches.first_forward`: outputs and lse of the branches that need no selection; no gradient.

    Three outputs [B, T, H, Dv] and three lse [B, H, T], empty for a branch that is not there; then the lse that
    selection needs, empty if it is the first of the three.
    """
    bands, lse = first_forward(q, k, v, scoring, Lengths(stride, length, block, window, past), borders)
    lse = None if lse is bands.lses[0] else lse
    return [q.new_empty(0) if x is None else x for x in (*bands.outs, *bands.lses, lse)]


@band_attention.register_fake
def _(q, k, v, scoring, stride, length, block, window, past, borders=None):
    present = [x is not None and (i != 1 or scoring is None) for i, x in enumerate(v)]
    fakes = [
        _fake_branch(q, x) if there else (q.new_empty(0), q.new_empty(0))
        for x, there in zip(v, present, strict=True)
    ]
    scoring_lse = _fake_branch(q, scoring)[1] if scoring is not None and v[0] is None else q.new_empty(0)
    return [*(out for out, _ in fakes), *(lse for _, lse in fakes), scoring_lse]


@torch.library.custom_op("nsa::select_blocks", mutates_args=())
def select_blocks(
    q: Tensor, k: Tensor, lse: Tensor, stride: int, length: int, block: int, count: int, initial: int,
    local: int, past: int, borders: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The operator of `branches.choose`: the blocks that each query selects, by the lse of its attention to the compressed keys k.

    int32 [B, Hkv, T, n], as `nsa.attention.selected.select_blocks`, or, with few blocks, [B, Hkv, T] with a bit for each.
    """
    selection = Selection(stride, length, block, count, initial, local)
    return choose(q, k, lse, selection, Lengths(stride, length, block, 0, past), borders)


@select_blocks.register_fake
def _(
    q: Tensor, k: Tensor, lse: Tensor, stride: int, length: int, block: int, count: int, initial: int,
    local: int, past: int, borders: Tensor | None = None,
) -> Tensor:  # fmt: skip
    selection = Selection(stride, length, block, count, initial, local)
    few = few_blocks(q, selection, Lengths(stride, length, block, 0, past), borders)
    shape = (q.shape[0], k.shape[2], q.shape[1])
    return q.new_empty(shape if few else (*shape, count), dtype=torch.int32)


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
    dense: Tensor | None,
    sliding: Tensor | None,
    compressed_lse: Tensor | None,
    dense_lse: Tensor | None,
    sliding_lse: Tensor | None,
    blocks: Tensor | None,
    stride: int,
    length: int,
    block: int,
    window: int,
    past: int,
    borders: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gated sum of the branches whose v is given, then output and lse of the selected branch and the unions for its
    backward; all but the sum are empty if there are no `blocks`.

    `compressed`, `dense` and `sliding`, and their lse, are the results of `band_attention` for these inputs. They carry no
    gradient: the backward of this operator is that of all branches. Without `blocks` every query selects every block
    it may select, and `dense` is the output of the selected branch.
    """
    empty = [q.new_empty(0) for _ in range(5)]
    if blocks is None:
        return (gated_sum((compressed, dense, sliding), gates), *empty)
    lengths = Lengths(stride, length, block, window, past)
    others = (compressed, None, sliding)
    total, out, lse, union = chosen_forward(
        q, k_selected, v_selected, blocks, lengths, borders, others, gates
    )
    return (total, out, lse, *(union or empty[2:]))


@gated_attention.register_fake
def _(
    q, k_compressed, k_selected, k_sliding, v_compressed, v_selected, v_sliding, gates, compressed, dense, sliding,
    compressed_lse, dense_lse, sliding_lse, blocks, stride, length, block, window, past, borders=None,
):  # fmt: skip
    v = next(v for v in (v_compressed, v_selected, v_sliding) if v is not None)
    total = _fake_branch(q, v)[0]
    empty = [q.new_empty(0) for _ in range(5)]
    if blocks is None:
        return (total, *empty)
    union = empty[2:] if blocks.dim() == 3 else union_room(q, blocks, borders)
    return (total, *_fake_branch(q, v_selected), *union)


@torch.library.custom_op(
    "nsa::gates_backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor?[] outs, Tensor?[] lses, Tensor gates) -> (Tensor, Tensor)",
)
def gates_backward(
    dout: Tensor, outs: list[Tensor | None], lses: list[Tensor | None], gates: Tensor
) -> tuple[Tensor, Tensor]:
    """The operator of `gates.gate_backward`, separate so that the outputs of the branches are freed after it."""
    return gate_backward(dout, outs, lses, gates)


@gates_backward.register_fake
def _(dout, outs, lses, gates):
    batch, n_queries, heads, _ = dout.shape
    return torch.empty_like(gates), dout.new_empty(2, 3, batch, heads, n_queries, dtype=torch.float32)


@torch.library.custom_op(
    "nsa::branches_backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor q, Tensor?[] k, Tensor?[] v, Tensor stats, Tensor? blocks, Tensor[] union,"
    " SymInt stride, SymInt length, SymInt block, SymInt window, SymInt past, Tensor? borders=None) -> Tensor[]",
)
def _branches_backward(
    dout: Tensor,
    q: Tensor,
    k: list[Tensor | None],
    v: list[Tensor | None],
    stats: Tensor,
    blocks: Tensor | None,
    union: list[Tensor],
    stride: int,
    length: int,
    block: int,
    window: int,
    past: int,
    borders: Tensor | None = None,
) -> list[Tensor]:
    """As `branches.branches_backward`: dq, three dk, three dv; empty for a branch that is not there."""
    lengths = Lengths(stride, length, block, window, past)
    dq, dk, dv = branches_backward(dout, q, k, v, stats, blocks, union, lengths, borders)
    return [dq, *(q.new_empty(0) if x is None else x for x in (*dk, *dv))]


@_branches_backward.register_fake
def _(dout, q, k, v, stats, blocks, union, stride, length, block, window, past, borders=None):
    dk = [q.new_empty(0) if b is None else torch.empty_like(a) for a, b in zip(k, v, strict=True)]
    dv = [q.new_empty(0) if b is None else torch.empty_like(b) for b in v]
    return [torch.empty_like(q), *dk, *dv]


def branches_backward_by_op(dout, q, k, v, stats, blocks, union, lengths, borders):
    """`branches.branches_backward` by its operator."""
    dq, *dkv = _branches_backward(dout, q, k, v, stats, blocks, union, *lengths, borders)
    dkv = [None if v[i % 3] is None else grad for i, grad in enumerate(dkv)]
    return dq, dkv[:3], dkv[3:]


def _save(ctx, inputs, output) -> None:
    *tensors, blocks, stride, length, block, window, past, borders = inputs
    if blocks is not None:
        tensors[9], tensors[12] = output[1:3]  # the selected branch's output and lse
    ctx.save_for_backward(*tensors, blocks, *output[3:], borders)
    ctx.lengths = Lengths(stride, length, block, window, past)
    ctx.set_materialize_grads(False)


def _backward(ctx, dout, *_):
    if dout is None:
        return (None,) * 21
    grads = gradients(dout, [*ctx.saved_tensors], ctx.lengths, gates_backward, branches_backward_by_op)
    return (*grads, *(None,) * 13)


gated_attention.register_autograd(_backward, setup_context=_save)


def attend(call: Call) -> Tensor:
    """Eq. 5 by the kernels."""
    q, k, v, gates, config, cu_seqlens, past_length = call
    borders = None if cu_seqlens is None else packed_borders(config, q.shape[1], cu_seqlens.to(q.device))
    q, gates = q.contiguous(), gates.contiguous()
    k, v = (BranchKV(*(x if x is None else x.contiguous() for x in each)) for each in (k, v))
    lengths = Lengths(
        config.compress_stride, config.compress_block, config.select_block, config.window, past_length
    )
    # With at most n blocks every query selects all of them, so the selected branch is dense causal attention.
    chooses = past_length + q.shape[1] > config.select_count * config.select_block
    selection = _selection(config) if chooses and "selected" in config.branches else None
    scoring = None if selection is None else k.compressed.detach()
    k, v = (
        [x if branch in config.branches else None for branch, x in zip(BRANCHES, each, strict=True)]
        for each in (k, v)
    )
    if suffices(q, *k, *v, gates):
        return Attention.apply(q, *k, *v, gates, scoring, selection, lengths, borders)
    return attend_by_ops(q, k, v, gates, scoring, selection, lengths, borders)


def attend_by_ops(
    q: Tensor,
    k: list[Tensor | None],
    v: list[Tensor | None],
    gates: Tensor,
    scoring: Tensor | None,
    selection: Selection | None,
    lengths: Lengths,
    borders: Tensor | None,
) -> Tensor:
    """The gated sum of the branches whose v is given.

    `scoring` are the compressed keys that `selection` scores blocks by; without either, every query of the selected
    branch attends to its whole past.
    """
    detached = q.detach(), *([None if x is None else x.detach() for x in each] for each in (k, v))
    *bands, scoring_lse = band_attention(*detached, scoring, *lengths, borders)
    there = [x is not None and (i != 1 or selection is None) for i, x in enumerate(v)]
    bands = [x if there[i % 3] else None for i, x in enumerate(bands)]
    blocks = None
    if selection is not None:
        lse = scoring_lse if bands[3] is None else bands[3]
        blocks = select_blocks(detached[0], scoring, lse, *selection, lengths.past, borders)
    return gated_attention(q, *k, *v, gates, *bands, blocks, *lengths, borders)[0]


def _selection(config: AttentionConfig) -> Selection:
    return Selection(
        config.compress_stride, config.compress_block, config.select_block, config.select_count,
        config.initial_blocks, config.local_blocks,
    )  # fmt: skip


def _fake_branch(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch, n_queries, heads, _ = q.shape
    out = q.new_empty(batch, n_queries, heads, v.shape[3])
    return out, q.new_empty(batch, heads, n_queries, dtype=torch.float32)
