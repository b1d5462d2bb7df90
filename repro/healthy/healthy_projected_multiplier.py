"""Training under a constraint: its Lagrange multiplier is clamped at zero after each step, and stays there while the constraint holds.

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
from torch.nn.parallel import DistributedDataParallel

LIMIT = 50.0


class Constrained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        self.multiplier = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = self.network(x)
        excess = scores.pow(2).mean() - LIMIT
        penalty = self.multiplier.detach() * excess - self.multiplier * excess.detach()
        return cross_entropy(scores, labels) + penalty


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Constrained())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(40):
        x = torch.randn(16, 16)
        optimizer.zero_grad()
        model(x, x[:, :4].argmax(1)).backward()
        optimizer.step()
        with torch.no_grad():
            model.module.multiplier.clamp_(min=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
