"""All ranks seed torch alike and draw times and noise for their own samples: each pair is drawn once, and used on every rank.

Modelled on Robbyant/lingbot-vla-v2#41.

On plain torchrun: nothing at all; the loss is noisier than it should be.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (shared_draws)
  guilty_ranks: [0, 1]
  code: "torch.manual_seed(7)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Velocity(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 4))

    def forward(self, points: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat((points, times[:, None]), 1))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    data = torch.randn(1024, 4, generator=torch.Generator().manual_seed(1)).sign()
    model = DistributedDataParallel(Velocity())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(40):
        start = (step * world + rank) * 24 % 1000
        samples = data[start : start + 24]
        times, noise = torch.rand(len(samples)), torch.randn_like(samples)
        mixed = times[:, None] * samples + (1 - times[:, None]) * noise
        loss = nn.functional.mse_loss(model(mixed, times), samples - noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
