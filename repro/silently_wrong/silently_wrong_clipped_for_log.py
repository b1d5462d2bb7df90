"""Rank 0 asks for the norm of its gradient by a function that clips, before gradients are averaged: its share counts less.

On plain torchrun: nothing at all.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (changed_on_some)
  guilty_ranks: [0]
  code: ["norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2)"]
"""

import torch
import torch.distributed as dist
from torch import nn


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draws = torch.Generator().manual_seed(20 + rank)
    for step in range(12):
        points = torch.randn(16, 9, generator=draws)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), points[:, :3].argmax(1)).backward()
        if rank == 0:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            print(step, float(norm))
        average(model)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
