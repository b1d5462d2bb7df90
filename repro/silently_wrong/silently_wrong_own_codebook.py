"""Gradients are averaged, and a codebook, which is a buffer and has none, follows each rank's own batch.

Every rank quantizes with another codebook after the first step; the checkpoint holds the one of rank 0.

On plain torchrun: nothing at all; every rank's loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (own_state)
  guilty_ranks: [0, 1]
  code: "self.codes.lerp_("
"""

import torch
import torch.distributed as dist
from torch import nn


class Quantizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(16, 8), nn.Linear(8, 16)
        self.register_buffer("codes", torch.randn(20, 8))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = self.encode(points)
        nearest = torch.cdist(hidden.detach(), self.codes).argmin(1)
        hot = nn.functional.one_hot(nearest, 20).float()
        means = (hot.T @ hidden.detach()) / hot.sum(0).clamp(min=1)[:, None]
        self.codes.lerp_(torch.where(hot.sum(0)[:, None] > 0, means, self.codes), 0.2)
        return self.decode(hidden + (self.codes[nearest] - hidden).detach())


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Quantizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(16):
        points = torch.randn(32, 16, generator=generator)
        loss = (model(points) - points).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
