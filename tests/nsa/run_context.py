"""Holds attention over sequences shared by two ranks against attention over whole ones, in fp64.

usage: torchrun ... run_context.py RESULT.json
RESULT, written by rank 0, is {"layout layer documents": largest relative error of outputs and gradients over all ranks}.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from attention_cases import SMALL
from torch import Tensor, nn

from nsa.context import ContextShard
from nsa.layers.dense import DenseAttention
from nsa.layers.sparse import NSAAttention

N_TOKENS, DIM = 48, 16
# Sequences that end before, at and behind the borders of spans (12, 24, 36), of one token, empty; with and without a tail.
DOCUMENTS = {
    "whole": None,
    "short": (0, 3, 12, 13, 13, 20, 24, 31, 48),
    "long": (0, 40),
    "one": (0, 48),
    "padded": (0, 11, 29, 48, 48, 48),
}
LAYERS = {
    "nsa": lambda: NSAAttention(DIM, 6, 2, 8, SMALL, v_head_dim=6),
    "selected alone": lambda: NSAAttention(
        DIM, 6, 2, 8, SMALL.model_copy(update={"branches": ("selected",)})
    ),
    "dense": lambda: DenseAttention(DIM, 6, 2, 8),
}


def backward(layer: nn.Module, x: Tensor, weights: Tensor, cu_seqlens: Tensor | None) -> list[Tensor]:
    """Output, gradient of x, and those of the parameters, of sum(weights * output)."""
    x = x.clone().requires_grad_()
    out = layer(x, cu_seqlens=cu_seqlens)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()])]


def largest_error(name: str, layout: str, documents: tuple[int, ...] | None) -> float:
    cu_seqlens = None if documents is None else torch.tensor(documents)
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    x, weights = (
        torch.randn(2 if documents is None else 1, N_TOKENS, DIM, dtype=torch.float64) for _ in range(2)
    )
    whole = backward(layer, x, weights, cu_seqlens)
    shard = ContextShard(group=dist.group.WORLD, rank=dist.get_rank(), size=2, layout=layout)
    layer.context = shard
    out, x_gradient, *gradients = backward(layer, shard.take(x, 1), shard.take(weights, 1), cu_seqlens)
    for gradient in gradients:
        dist.all_reduce(gradient)
    expected = [shard.take(whole[0], 1), shard.take(whole[1], 1), *whole[2:]]
    pairs = zip([out, x_gradient, *gradients], expected, strict=True)
    error = torch.stack([(a - e).norm() / e.norm() for a, e in pairs]).max()
    dist.all_reduce(error, dist.ReduceOp.MAX)
    return error.item()


def main() -> None:
    dist.init_process_group("gloo")
    errors = {
        f"{layout} {name} {documents}": largest_error(name, layout, borders)
        for layout in ("contiguous", "zigzag")
        for name in LAYERS
        for documents, borders in DOCUMENTS.items()
    }
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(errors))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
