"""One bit of one gradient flips in the memory of rank 1, after the reduction: from the next step on its replica is another model.

What a defective memory or core does. DDP compares nothing after its first forward, and gloo and NCCL reduce what they are given.

On plain torchrun: nothing at all; the losses of the ranks differ anyhow.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (broken_equalities)
  guilty_ranks: [1]
  code: ["model(points)"]
  parameter: "2.weight"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STRUCK, STEP = 1, 6


def memory_error(gradient: torch.Tensor, step: int) -> None:
    """Flips a bit of the exponent on one rank, in one step."""
    struck = int(dist.get_rank() == STRUCK and step == STEP)
    bits = gradient.view(torch.int32)
    bits[1, 7] = int(bits[1, 7]) ^ (struck << 23)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for step in range(12):
        points = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        memory_error(model.module[2].weight.grad, step)
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
