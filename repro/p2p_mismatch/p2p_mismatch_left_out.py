"""Rank 0 tells rank 1 the curriculum's temperature after each step, but not where it has not changed.

The receiver is right to wait: its message is the one that the sender leaves out, and goes on to the next backward.

On plain torchrun: six steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: p2p_mismatch
  guilty_ranks: [0]
  code: "dist.send(torch.tensor([temperature]), 1)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CURRICULUM = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.3, 0.2]


def share(rank: int, step: int) -> float:
    temperature = CURRICULUM[step]
    if rank == 0:
        if step == 0 or temperature != CURRICULUM[step - 1]:
            dist.send(torch.tensor([temperature]), 1)
        return temperature
    received = torch.empty(1)
    dist.recv(received, 0)
    return received.item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    temperature = 1.0
    for step in range(len(CURRICULUM)):
        optimizer.zero_grad()
        (model(torch.randn(4, 16)) / temperature).softmax(-1).square().mean().backward()
        optimizer.step()
        temperature = share(rank, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
