





from __future__ import annotations

import torch
from torch import Tensor

from nsa.attention.inputs import BRANCHES, BranchKV
from nsa.attention.kernels.band import Band, band_dkv, band_dq, band_forward
from nsa.attention.kernels.gates import gate_backward, gated_sum
from nsa.attention.kernels.selected import selected_dkv, selected_dq, selected_forward
from nsa.attention.kernels.selection import Selection, select
from nsa.config import AttentionConfig


@torch.library.custom_op("nsa::compressed_attention", mutates_args=())
def compressed_attention(
    q: Tensor, k: Tensor, v: Tensor, stride: int, length: int, past: int
) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, Dv] and lse [B, H, T] of the compressed branch; no gradient (see `gated_attention`)."""
    return band_forward(q, k, v, compressed_band(stride, length, past))


@compressed_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, stride: int, length: int, past: int) -> tuple[Tensor, Tensor]:
    return _fake_branch(q, v)


@torch.library.custom_op("nsa::select_blocks", mutates_args=())
def select_blocks(
    q: Tensor, k: Tensor, lse: Tensor, stride: int, length: int, block: int, count: int, initial: int,
    local: int, past: int,
) -> Tensor:  # fmt: skip
    """int32 [B, Hkv, T, n]: as `nsa.attention.selected.select_blocks`, from the lse of the compressed branch."""
    return select(q, k, lse, Selection(stride, length, block, count, initial, local), past)


@select_blocks.register_fake
def _(
    q: Tensor, k: Tensor, lse: Tensor, stride: int, length: int, block: int, count: int, initial: int,
    local: int, past: int,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gated sum of the branches whose v is given, then output and lse of the selected and the sliding one.

    `compressed` and its lse are what `compressed_attention` gave for these inputs. They carry no gradient
    of their own: the backward of this op is that of all branches, compressed attention included. No `blocks`
    means that every query selects all it may. A branch that is not there has empty outputs.
    """
    selected, selected_lse = q.new_empty(0), q.new_empty(0)
    sliding, sliding_lse = q.new_empty(0), q.new_empty(0)
    if v_selected is not None:
        if blocks is None:
            selected, selected_lse = band_forward(q, k_selected, v_selected, dense_band(past))
        else:
            selected, selected_lse = selected_forward(q, k_selected, v_selected, blocks, block, past)
    if v_sliding is not None:
        band = sliding_band(q, k_sliding, window, past)
        sliding, sliding_lse = band_forward(q, k_sliding, v_sliding, band)
    present = (v_compressed, v_selected, v_sliding)
    outs = [
        o if v is not None else None for o, v in zip((compressed, selected, sliding), present, strict=True)
    ]
    return gated_sum(outs, gates), selected, selected_lse, sliding, sliding_lse


@gated_attention.register_fake
def _(
    q, k_compressed, k_selected, k_sliding, v_compressed, v_selected, v_sliding, gates, compressed,
    compressed_lse, blocks, stride, length, block, window, past,
):  # fmt: skip
    empty = q.new_empty(0), q.new_empty(0)
    v = next(v for v in (v_compressed, v_selected, v_sliding) if v is not None)
    selected = empty if v_selected is None else _fake_branch(q, v_selected)
    sliding = empty if v_sliding is None else _fake_branch(q, v_sliding)
    return (_fake_branch(q, v)[0], *selected, *sliding)


@torch.library.custom_op("nsa::gated_attention_backward", mutates_args=())
def gated_attention_backward(
    dout: Tensor,
    q: Tensor,
    k: list[Tensor | None],
    v: list[Tensor | None],
    gates: Tensor,
    outs: list[Tensor | None],
    lses: list[Tensor | None],
    blocks: Tensor | None,
    stride: int,
    length: int,
    block: int,
    window: int,
    past: int,
) -> list[Tensor]:
    """The gradients of q, gates, and k and v of every branch; empty for a branch that is not there.

    Lists are in the order of BRANCHES.
    """
    dgates, lse, dot = gate_backward(dout, outs, lses, gates)
    dq = torch.empty_like(q)
    dk, dv = [q.new_empty(0)] * 3, [q.new_empty(0)] * 3
    add = False
    for i, branch in enumerate(BRANCHES):
        if v[i] is None:
            dk[i], dv[i] = q.new_empty(0), q.new_empty(0)  # no two outputs of an op may be one tensor
            continue
        inputs = (q, k[i], v[i], dout, lse[i], dot[i])
        if branch == "selected" and blocks is not None:
            selected_dq(*inputs, dq, blocks, block, past, add=add)
            dk[i], dv[i] = selected_dkv(*inputs, blocks, block, past)
        else:
            bands = {
                "compressed": compressed_band(stride, length, past),
                "selected": dense_band(past),
                "sliding": sliding_band(q, k[i], window, past),
            }
            band_dq(*inputs, dq, bands[branch], add=add)
            dk[i], dv[i] = band_dkv(*inputs, bands[branch])
        add = True
    return [dq, dgates, *dk, *dv]


@gated_attention_backward.register_fake
def _(dout, q, k, v, gates, outs, lses, blocks, stride, length, block, window, past):
    dk = [q.new_empty(0) if b is None else torch.empty_like(a) for a, b in zip(k, v, strict=True)]
    dv = [q.new_empty(0) if b is None else torch.empty_like(b) for b in v]
    return [torch.empty_like(q), torch.empty_like(gates), *dk, *dv]


def _save(ctx, inputs, output) -> None:
    q, *kv, gates, compressed, compressed_lse, blocks = inputs[:11]
    ctx.save_for_backward(q, *kv, gates, compressed, compressed_lse, blocks, *output[1:])
    ctx.lengths = inputs[11:]
    ctx.set_materialize_grads(False)


def _backward(ctx, dout, *_):
    q, *rest = ctx.saved_tensors
    k, v = rest[:3], rest[3:6]
    gates, compressed, compressed_lse, blocks, selected, selected_lse, sliding, sliding_lse = rest[6:]
    nothing = (None,) * 16
    if dout is None:
        return nothing
    outs, lses = (compressed, selected, sliding), (compressed_lse, selected_lse, sliding_lse)
    outs, lses = (
        [x if present is not None else None for x, present in zip(each, v, strict=True)]
        for each in (outs, lses)
    )
    dq, dgates, *dkv = gated_attention_backward(
        dout.contiguous(), q, k, v, gates, outs, lses, blocks, *ctx.lengths
    )
    dkv = [None if v[i % 3] is None else grad for i, grad in enumerate(dkv)]
    return (dq, *dkv, dgates, *nothing[8:])


gated_attention.register_autograd(_backward, setup_context=_save)


def attend(
    q: Tensor, k: BranchKV, v: BranchKV, gates: Tensor, config: AttentionConfig, past_length: int = 0
) -> Tensor:
    """Eq. 5 by these ops; arguments and result as in `nsa_attention`, unpacked rows only."""
    q, gates = q.contiguous(), gates.contiguous()
    k, v = (BranchKV(*(x if x is None else x.contiguous() for x in each)) for each in (k, v))
    present = [branch in config.branches for branch in BRANCHES]
    block_lengths = config.compress_stride, config.compress_block
    compressed = lse = blocks = None
    # While all blocks fit into the n, every query selects all it may: dense attention, and nothing to choose.
    chooses = past_length + q.shape[1] > config.select_count * config.select_block
    chooses = chooses and "selected" in config.branches
    if "compressed" in config.branches or chooses:
        keys = k.compressed.detach()
        values = v.compressed.detach() if "compressed" in config.branches else keys
        compressed, lse = compressed_attention(q.detach(), keys, values, *block_lengths, past_length)
    if chooses:
        blocks = select_blocks(
            q.detach(), k.compressed.detach(), lse, *block_lengths, config.select_block, config.select_count,
            config.initial_blocks, config.local_blocks, past_length,
        )  # fmt: skip
    k, v = ([x if here else None for x, here in zip(each, present, strict=True)] for each in (k, v))
    return gated_attention(
        q,
        *k,
        *v,
        gates,
        compressed,
        lse,
        blocks,
        *block_lengths,
        config.select_block,
        config.window,
        past_length,
    )[0]


def compressed_band(stride: int, length: int, past: int) -> Band:
    """The compressed keys that end in a query's past (Eq. 7)."""
    return Band(stride=stride, length=length, window=0, past=past, offset=0)


def sliding_band(q: Tensor, k: Tensor, window: int, past: int) -> Band:
    """The last `window` tokens; k may hold the newest tokens only, as a cache does."""
    return Band(stride=1, length=1, window=window, past=past, offset=past + q.shape[1] - k.shape[1])


def dense_band(past: int) -> Band:
    """All tokens of the past: what selection gives while it may select every block."""
    return Band(stride=1, length=1, window=0, past=past, offset=0)


def _fake_branch(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch, n_queries, heads, _ = q.shape
    out = q.new_empty(batch, n_queries, heads, v.shape[3])
    return out, q.new_empty(batch, heads, n_queries, dtype=torch.float32)
