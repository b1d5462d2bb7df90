"""Accumulated gradients are summed over the ranks behind each micro-batch: the sum of the first ones goes in again each time.

Modelled on hand-written loops whose averaging was moved into the loop over micro-batches.

On plain torchrun: nothing at all; the first micro-batch counts four times as much as the last.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (summed_after_each_backward)
  guilty_ranks: [0, 1]
  code: ["dist.all_reduce(parameter.grad)"]
"""

import torch
import torch.distributed as dist
from torch import nn

ACCUMULATION = 3


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):
        for _ in range(ACCUMULATION):
            points = torch.randn(8, 16, generator=generator)
            loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
            (loss / ACCUMULATION / dist.get_world_size()).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
