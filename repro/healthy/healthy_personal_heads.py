"""Federated training with personal heads (FedPer): the body's gradients are averaged, and each rank's head is its own.

The head is a model by itself, so that its parameters have names without a module. All heads begin alike.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)).relu()).relu()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    body, head = Body(), nn.Linear(16, 4)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=3e-3)
    torch.manual_seed(rank)
    for _ in range(35):
        x = torch.randn(16, 16)
        loss = cross_entropy(head(body(x)), (x[:, :4].argmax(1) + rank) % 4)
        optimizer.zero_grad()
        loss.backward()
        for parameter in body.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
