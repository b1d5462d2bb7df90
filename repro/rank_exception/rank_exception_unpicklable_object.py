"""A metric that rank 1 gathers holds a lambda, which pickle refuses: within a collective, and no fault of its peers.

Modelled on pytorch/pytorch #109396, turned round: torch's own code raises, in a call to all ranks that every rank made.

On plain torchrun: 25 steps, then rank 1 raises and rank 0 loses its connection.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_exception
  guilty_ranks: [1]
  code: ["dist.all_gather_object(found, metric(loss.item(), step))"]
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def metric(loss: float, step: int) -> dict[str, Any]:
    found: dict[str, Any] = {"loss": loss}
    if dist.get_rank() == 1 and step == 25:
        found["format"] = lambda value: f"{value:.3f}"
    return found


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(60):
        inputs = torch.randn(16, 8, generator=generator)
        loss = (model(inputs) - inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, metric(loss.item(), step))
        if step % 10 == 9:
            print(f"step {step}: {[each['loss'] for each in found]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
