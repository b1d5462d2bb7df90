"""Embeddings with sparse gradients accumulate over six micro-batches, and DDP exchanges them with the last.

Modelled on questions about sparse embeddings under DDP's `no_sync`: whether such a gradient of before is still there cannot be read off
its elements, as those of others can.

On plain torchrun: nothing; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WINDOW = 6


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Embedding(256, 16, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(24):
        for number in range(WINDOW):
            exchange = contextlib.nullcontext() if number == WINDOW - 1 else model.no_sync()
            with exchange:
                loss = model(torch.randint(256, (32,))).square().mean() / WINDOW
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
