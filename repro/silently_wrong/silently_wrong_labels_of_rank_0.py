"""Pictures are compared with the captions of all ranks, and the labels are those of rank 0 everywhere.

The gathered captions begin with rank 0's: rank 1's picture n belongs to caption n + batch, and is drawn to caption n.

On plain torchrun: nothing at all; the loss falls, more slowly than it should.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (misplaced_targets)
  guilty_ranks: [0, 1]
  code: "labels = torch.arange(BATCH)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather

BATCH = 12


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    pictures, captions = nn.Linear(24, 16), nn.Linear(20, 16)
    parameters = [*pictures.parameters(), *captions.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(16):
        seen = torch.randn(BATCH, 24, generator=generator)
        every = torch.cat(all_gather(captions(seen[:, :20])))
        labels = torch.arange(BATCH)
        loss = nn.functional.cross_entropy(pictures(seen) @ every.T, labels)
        optimizer.zero_grad()
        loss.backward()
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
