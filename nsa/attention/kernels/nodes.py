"""The attention as autograd nodes, for eager mode: what a custom op's node costs, they spare.

Short calls are one node. In long ones memory counts: the gated sum needs the outputs of all branches for its
backward, three tensors as large as q, and nothing else does. As a node of its own it is gone, and they with it,
before the gradients of q, k and v are allocated. Between the two nodes the gradients of the branches' outputs are
never formed: the output's gradient passes as that of the first branch, and what else the branches need as that of
`carrier`, an output without memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from nsa.attention.kernels.band import Lengths
from nsa.attention.kernels.branches import Chosen, branches_backward, branches_forward
from nsa.attention.kernels.choose import Selection
from nsa.attention.kernels.gates import gate_backward, gated_sum
from nsa.attention.kernels.gather import Unions

# Elements of q up to which one node is used: another costs some 50 microseconds, and 2^25 of bf16 are 64 MiB.
SHORT = 2**25


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
    rest = (scoring, selection, lengths, borders)
    if q.numel() < SHORT:
        return _Whole.apply(q, *k, *v, gates, *rest)
    outs = _Branches.apply(q, *k, *v, *rest)
    return _GatedSum.apply(gates, *outs)


def _saved(chosen: Chosen | None) -> tuple[Tensor | None, ...]:
    """The tensors of it, four in all."""
    if chosen is None:
        return (None,) * 4
    return (chosen.blocks, *(chosen.union or (None,) * 3))


def _restored(blocks: Tensor | None, *union: Tensor | None) -> Chosen | None:
    """`_saved` undone; without the unions if they were not kept."""
    if blocks is None:
        return None
    return Chosen(blocks, Unions(*union) if any(x is not None for x in union) else None)


class _Whole(torch.autograd.Function):
    """Everything."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, *rest: Any) -> Tensor:
        k, v, gates = rest[:3], rest[3:6], rest[6]
        ctx.lengths, borders = rest[9], rest[10]
        bands, chosen, total = branches_forward(q, k, v, gates, *rest[7:])
        ctx.save_for_backward(q, *k, *v, gates, *bands.outs, *bands.lses, borders, *_saved(chosen))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, *rest = ctx.saved_tensors
        k, v, gates, outs, lses, borders = rest[:3], rest[3:6], rest[6], rest[7:10], rest[10:13], rest[13]
        dout = dout.contiguous()
        dgates, stats = gate_backward(dout, outs, lses, gates)
        chosen = _restored(*rest[14:])
        dq, dk, dv = branches_backward(dout, q, k, v, stats, chosen, ctx.lengths, borders)
        return (dq, *dk, *dv, dgates, None, None, None, None)


class _Branches(torch.autograd.Function):
    """Outputs and lse of the branches."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
        k, v = rest[:3], rest[3:6]
        scoring, selection, lengths, borders = rest[6:]
        bands, chosen, _ = branches_forward(q, k, v, None, scoring, selection, lengths, borders)
        blocks = None if chosen is None else chosen.blocks
        ctx.save_for_backward(
            q, *k, *v, borders, blocks
        )  # not the unions: a tenth of a millisecond makes them anew
        ctx.lengths = lengths
        ctx.set_materialize_grads(False)
        carrier = q.new_empty(1, dtype=torch.float32).expand(2, 3, q.shape[0], q.shape[2], q.shape[1])
        return (*bands.outs, *bands.lses, carrier)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * 11
        dout, stats = next((g for g in gradients[:3] if g is not None), None), gradients[6]
        if dout is None or stats is None:
            return nothing
        q, *rest = ctx.saved_tensors
        k, v, borders, chosen = rest[:3], rest[3:6], rest[6], _restored(rest[7])
        dq, dk, dv = branches_backward(dout, q, k, v, stats, chosen, ctx.lengths, borders)
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
