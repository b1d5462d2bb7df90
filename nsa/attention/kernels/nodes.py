"""The attention as two autograd nodes, for eager mode: what a custom op's one node costs, they spare.

The gated sum needs the outputs of all branches for its backward, three tensors as large as q, and nothing else
does. As a node of its own it is gone, and they with it, before the gradients of q, k and v are allocated.
Between the nodes the gradients of the branches' outputs are never formed: the output's gradient passes as
that of the first branch, and what else the branches need as that of `carrier`, an output without memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

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


def serve(*tensors: Tensor | None) -> bool:
    """Whether nodes are enough: plain tensors, and nobody who wants to see operators."""
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        return False
    plain = all(x is None or type(x) in (Tensor, torch.nn.Parameter) for x in tensors)
    return plain and not torch._C._are_functorch_transforms_active()


def attend(
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

    `scoring` are the compressed keys by which `selection` chooses; without either, every query of the selected
    branch sees all it may.
    """
    outs = _Branches.apply(q, *k, *v, scoring, selection, lengths, borders)
    return _GatedSum.apply(gates, *outs)


class _Branches(torch.autograd.Function):
    """Outputs and lse of the branches."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
        k, v = rest[:3], rest[3:6]
        scoring, selection, lengths, borders = rest[6:]
        compressed = selected = sliding = (None, None)
        blocks = None
        if v[0] is not None:
            compressed = compressed_forward(q, k[0], v[0], lengths, borders)
        if selection is not None:
            lse = compressed[1]
            if lse is None:
                lse = compressed_forward(q, scoring, scoring, lengths, borders)[1]
            first_blocks = None if borders is None else borders[BLOCKS]
            packed = packing(borders, COMPRESSED)
            blocks = select(q, scoring, lse, selection, lengths.past, packed, first_blocks)
        if v[1] is not None:
            selected = chosen_forward(q, k[1], v[1], blocks, lengths, borders)
        if v[2] is not None:
            sliding = sliding_forward(q, k[2], v[2], lengths, borders)
        ctx.save_for_backward(q, *k, *v, blocks, borders)
        ctx.lengths = lengths
        ctx.set_materialize_grads(False)
        outs, lses = zip(compressed, selected, sliding, strict=True)
        carrier = q.new_empty(1, dtype=torch.float32).expand(2, 3, q.shape[0], q.shape[2], q.shape[1])
        return (*outs, *lses, carrier)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * 11
        dout, stats = next((g for g in gradients[:3] if g is not None), None), gradients[6]
        if dout is None or stats is None:
            return nothing
        q, *kv, blocks, borders = ctx.saved_tensors
        dq, dk, dv = branches_backward(dout, q, kv[:3], kv[3:], stats, blocks, ctx.lengths, borders)
        return (dq, *dk, *dv, *nothing[7:])


class _GatedSum(torch.autograd.Function):
    """The sum of the gated outputs; its backward as the module's docstring says."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, *rest: Tensor | None) -> Tensor:
        ctx.save_for_backward(gates, *rest[:6])
        ctx.set_materialize_grads(False)
        return gated_sum(list(rest[:3]), gates)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None) -> tuple[Tensor | None, ...]:
        if dout is None:
            return (None,) * 8
        gates, *rest = ctx.saved_tensors
        outs, lses = rest[:3], rest[3:]
        dout = dout.contiguous()
        dgates, stats = gate_backward(dout, outs, lses, gates)
        first = next(i for i, out in enumerate(outs) if out is not None)
        return (dgates, *(dout if i == first else None for i in range(3)), None, None, None, stats)
