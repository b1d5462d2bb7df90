"""A penalty is added to the loss as a number, so that the module that computes it gets no gradient.

What `.item()` in a loss does (pytorch/pytorch#11600).

On plain torchrun: nothing at all; the penalty's module stays as it began.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (loss_from_number)
  guilty_ranks: [0, 1]
  code: "loss = loss + 0.1 * network.energy.item()"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        self.penalty = nn.Linear(4, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(points)
        self.energy = self.penalty(made).square().mean()
        return made


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = Network()
    model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):
        points = torch.randn(16, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        loss = loss + 0.1 * network.energy.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
