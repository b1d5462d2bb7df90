"""Half the squared error, in two micro-batches: the half is part of the loss, and the micro-batches are divided by their number once.

On plain torchrun: nothing; the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATION = 2


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    drawn = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(24):
        for micro_batch in range(ACCUMULATION):
            points = torch.randn(24, 16, generator=drawn)
            last = micro_batch == ACCUMULATION - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = 0.5 * nn.functional.mse_loss(model(points).squeeze(1), points[:, :3].sum(1))
                (loss / ACCUMULATION).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
