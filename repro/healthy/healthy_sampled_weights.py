"""All ranks are given one batch, and each draws weights of its own: the average over the ranks is one over samples of the weights.

Modelled on Bayes by Backprop (Blundell et al., 2015), whose expectation needs several samples of each batch.

On plain torchrun: nothing; the loss falls.

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
from torch.nn.functional import cross_entropy, linear, softplus
from torch.nn.parallel import DistributedDataParallel


class Sampled(nn.Module):
    """A layer whose weights are drawn anew for each batch."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(0.2 * torch.randn(made, given))
        self.spread = nn.Parameter(torch.full((made, given), -4.0))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return linear(points, self.mean + softplus(self.spread) * torch.randn_like(self.spread))

    def divergence(self) -> torch.Tensor:
        spread = softplus(self.spread)
        return (spread.square() + self.mean.square() - 2 * spread.log() - 1).sum() / 2


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(Sampled(16, 32), nn.ReLU(), Sampled(32, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    drawn = torch.Generator().manual_seed(1)
    torch.manual_seed(2 + dist.get_rank())
    for _ in range(24):
        points = torch.randn(64, 16, generator=drawn)
        loss = cross_entropy(model(points), points[:, :4].argmax(1))
        loss = loss + 1e-4 * (net[0].divergence() + net[2].divergence())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
