"""The attention as one autograd function, for eager mode: it costs less Python than a custom operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nsa.attention.inputs import traced
from nsa.attention.kernels.branches import (
    branches_backward,
    choose,
    chosen_forward,
    first_forward,
    gradients,
)
from nsa.attention.kernels.gates import gate_backward, gated_sum


def suffices(*tensors: Tensor | None) -> bool:
    """Whether the autograd function can be used: on plain tensors, outside tracing, dispatch modes and functorch."""
    return not traced() and all(x is None or type(x) in (Tensor, torch.nn.Parameter) for x in tensors)


class Attention(torch.autograd.Function):
    """The gated sum of the branches whose v is given; inputs as in `ops.attend_by_ops`, with k and v as three tensors each."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, *rest: Any) -> Tensor:
        k, v, gates = rest[:3], rest[3:6], rest[6]
        scoring, selection, ctx.lengths, borders = rest[7:]
        (outs, lses), lse = first_forward(q, k, v, scoring, ctx.lengths, borders)
        blocks = union = None
        if selection is None:
            total = gated_sum(outs, gates)
        else:
            blocks = choose(q, scoring, lse, selection, ctx.lengths, borders)
            total, outs[1], lses[1], union = chosen_forward(
                q, k[1], v[1], blocks, ctx.lengths, borders, outs, gates
            )
        union = union or (None,) * 3
        ctx.save_for_backward(q, *k, *v, gates, *outs, *lses, blocks, *union, borders)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        saved = [*ctx.saved_tensors]
        ctx.maybe_clear_saved_tensors()  # frees them before the gradients are allocated, unless the graph is retained
        grads = gradients(dout, saved, ctx.lengths, gate_backward, branches_backward)
        return (*grads, None, None, None, None)
