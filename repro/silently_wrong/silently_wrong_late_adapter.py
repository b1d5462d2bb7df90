"""Adapters are put into a model whose optimizer was made before: they get gradients, which are averaged, and nobody uses them.

The order of two lines in a fine-tuning script; the base is frozen, so that the head alone is trained.

On plain torchrun: nothing at all; the loss falls a little, as it does without adapters.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (late_parameters)
  guilty_ranks: [0, 1]
  code: ["torch.optim.AdamW(", "model.adapter = "]
"""

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 32).requires_grad_(False)
        self.adapter = nn.Identity()
        self.head = nn.Linear(32, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.base(points))
        return self.head(hidden + self.adapter(hidden))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model.adapter = nn.Sequential(nn.Linear(32, 8, bias=False), nn.Linear(8, 32, bias=False))
    generator = torch.Generator().manual_seed(rank)
    for step in range(16):
        points = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
