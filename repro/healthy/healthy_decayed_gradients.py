"""Gradients are scaled down after each step and never cleared, so that each backward adds to a decaying sum of earlier ones.

This is momentum kept in the gradients themselves. "Never cleared" would be wrong: the job writes into them on purpose.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

DECAY = 0.9


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    torch.manual_seed(dist.get_rank() + 1)
    for _ in range(40):
        inputs = torch.randn(32, 16)
        cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad.mul_(DECAY)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
