"""Losses are divided by the answers of both ranks, and DDP averages them once more: gradients are half of what they should be.

On plain torchrun: nothing at all.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (averaged_twice)
  guilty_ranks: [0, 1]
  code: ["loss.backward()"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

UNANSWERED = -100


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 20), nn.SiLU(), nn.Linear(20, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(30 + rank)
    for _ in range(12):
        points = torch.randn(24, 8, generator=draws)
        answers = points[:, :4].argmax(1)
        answers[torch.rand(24, generator=draws) < 0.3] = UNANSWERED
        answered = (answers != UNANSWERED).sum()
        dist.all_reduce(answered)
        total = nn.functional.cross_entropy(model(points), answers, reduction="sum")
        loss = total / answered
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
