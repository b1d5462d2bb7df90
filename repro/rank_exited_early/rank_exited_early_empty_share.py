"""Rank 1's share of the data is empty, so it says so and leaves with exit code 0, before DDP wraps the model.

A share is cut by a size that all the data fit into. Rank 0 never did a step, nor did rank 1: only the exit tells.

On plain torchrun: a warning of rank 1, and rank 0's connection error within DDP, rank 0 blamed.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: rank_exited_early
  guilty_ranks: [1]
  code: ["sys.exit(0)"]
"""

import logging
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

PER_RANK = 24
log = logging.getLogger(__name__)


def share_of(rank: int) -> Subset:
    rows = TensorDataset(torch.randn(24, 6), torch.randint(0, 2, (24,)))
    return Subset(rows, range(rank * PER_RANK, min((rank + 1) * PER_RANK, len(rows))))


def run() -> None:
    dist.init_process_group("gloo")
    rows = share_of(dist.get_rank())
    if len(rows) == 0:
        log.warning("rank %d has nothing to train on", dist.get_rank())
        sys.exit(0)
    model = DistributedDataParallel(torch.nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for inputs, targets in DataLoader(rows, batch_size=4):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
