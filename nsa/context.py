"""Context parallelism: the tokens of one sequence spread over ranks, whose keys and values all of them gather.

Queries stay on their rank, so a rank computes the attention of some queries after a past, which every backend supports.
Once a layer the ranks gather each other's keys and values; backward sums their gradients and returns them to their rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 deprecates the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, kw_only=True)
class Span:
    """A contiguous part of the sequence that a rank holds."""

    local: slice  # its tokens among the rank's
    past: int  # tokens of the sequence before it
    end: int


@dataclass(frozen=True, kw_only=True)
class ContextShard:
    """This process's part of every sequence: the `rank`-th of `size`, in `group`.

    "contiguous" gives each rank one span; "zigzag" two, the r-th from the front and the r-th from the back, so that the
    queries of all ranks see equally many keys.
    """

    group: dist.ProcessGroup
    rank: int
    size: int
    layout: str = "contiguous"

    def spans(self, n_local: int) -> list[Span]:
        """The spans of this rank's `n_local` tokens."""
        return self._spans_of(self.rank, n_local)

    def take(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of `x`, whose `dim` counts the tokens of the sequence; ValueError if it has no equal parts."""
        parts = self.size * len(self.spans(2))
        if x.shape[dim] % parts:
            raise ValueError(f"{x.shape[dim]} tokens do not divide into {parts} equal spans")
        spans = self.spans(x.shape[dim] // self.size)
        return torch.cat([x.narrow(dim, span.past, span.end - span.past) for span in spans], dim)

    def gather(self, x: Tensor) -> Tensor:
        """All ranks' x [B, T, ...] in the order of the sequence, [B, size * T, ...]; a collective, also in backward."""
        return _Gather.apply(x, self)

    def _spans_of(self, rank: int, n_local: int) -> list[Span]:
        if self.layout == "contiguous":
            return [Span(local=slice(0, n_local), past=rank * n_local, end=(rank + 1) * n_local)]
        half = n_local // 2
        pasts = rank * half, (2 * self.size - 1 - rank) * half
        return [
            Span(local=slice(i * half, (i + 1) * half), past=past, end=past + half)
            for i, past in enumerate(pasts)
        ]

    def _places(self, n_local: int) -> list[tuple[Span, int]]:
        """Every span, with its rank."""
        return [(span, rank) for rank in range(self.size) for span in self._spans_of(rank, n_local)]


class _Gather(torch.autograd.Function):
    """All-gather, whose backward is a reduce-scatter: every rank's queries read the gathered tensor."""

    # As torch.compiler.disable, which would import torch's compiler here, 1.7 s of it, and not at the first call.

    @staticmethod
    @torch._disable_dynamo
    def forward(ctx: Any, x: Tensor, shard: ContextShard) -> Tensor:
        ctx.shard, n_local = shard, x.shape[1]
        x = x.contiguous()
        parts = x.new_empty(shard.size * x.shape[0], *x.shape[1:])
        _all_gather(parts, x, group=shard.group)
        parts = parts.unflatten(0, (shard.size, x.shape[0]))
        places = sorted(shard._places(n_local), key=lambda place: place[0].past)
        return torch.cat([parts[rank][:, span.local] for span, rank in places], dim=1)

    @staticmethod
    @torch._disable_dynamo
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        shard: ContextShard = ctx.shard
        n_local = gradient.shape[1] // shard.size
        of_ranks = [
            torch.cat([gradient[:, span.past : span.end] for span in shard._spans_of(rank, n_local)], dim=1)
            for rank in range(shard.size)
        ]
        parts = torch.cat(of_ranks)
        if dist.get_backend(shard.group) != "nccl":  # older gloo has no reduce-scatter
            dist.all_reduce(parts, group=shard.group)
            return parts.chunk(shard.size)[shard.rank], None
        own = torch.empty_like(of_ranks[0])
        _reduce_scatter(own, parts, group=shard.group)
        return own, None
