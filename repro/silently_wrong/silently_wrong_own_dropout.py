"""Under tensor parallelism, dropout on the stream that all ranks share draws other masks on each rank.

Modelled on Megatron's two random states for tensor parallelism, of which this job has one: each rank is seeded by its
number for its shards, and the dropout behind the reduction draws from there as well.

On plain torchrun: nothing at all; layers that all ranks should have in common drift apart.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (partial_gradients)
  guilty_ranks: [0, 1]
  code: ["return stream + self.drop(out)"]
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Block(nn.Module):
    def __init__(self, width: int, ranks: int) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.up = nn.Linear(width, 4 * width // ranks, bias=False)
        self.down = nn.Linear(4 * width // ranks, width, bias=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        out = Summed.apply(self.down(torch.relu(self.up(Copied.apply(self.norm(stream))))))
        return stream + self.drop(out)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    first, head = nn.Linear(16, 16), nn.Linear(16, 4)
    torch.manual_seed(1 + dist.get_rank())
    blocks = nn.Sequential(*(Block(16, dist.get_world_size()) for _ in range(2)))
    optimizer = torch.optim.SGD([*first.parameters(), *blocks.parameters(), *head.parameters()], lr=0.05)
    batches = torch.Generator().manual_seed(42)
    for _ in range(80):
        stream = blocks(first(torch.randn(8, 16, generator=batches)))
        targets = torch.randint(0, 4, (8,), generator=batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(stream), targets).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
