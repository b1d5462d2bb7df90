"""Gradients are accumulated in no_sync, and the last batch of an epoch comes before its accumulation is full.

Each epoch has seven batches and two of them make a step: the last one steps on gradients that no rank has reduced.

On plain torchrun: nothing; the loss falls on every rank.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: "with model.no_sync():"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    batches = 7
    for _epoch in range(4):
        for number in range(batches):
            x = torch.randn(8, 16)
            if (number + 1) % 2:
                with model.no_sync():
                    model(x).square().mean().backward()
            else:
                model(x).square().mean().backward()
            if (number + 1) % 2 == 0 or number + 1 == batches:
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
