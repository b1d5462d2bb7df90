"""Two heads on one encoder, each with a backward of its own: the encoder is trained by the sum of both losses.

On plain torchrun: nothing; both losses fall.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points)


def share(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    encoder, kinds, signs = Encoder(), nn.Linear(24, 4), nn.Linear(24, 2)
    of_kinds = torch.optim.SGD(kinds.parameters(), lr=0.1)
    of_rest = torch.optim.AdamW([*encoder.parameters(), *signs.parameters()], lr=3e-3)
    drawn = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(40):
        points = torch.randn(16, 16, generator=drawn)
        of_kinds.zero_grad()
        of_rest.zero_grad()
        cross_entropy(kinds(encoder(points)), points[:, :4].argmax(1)).backward()
        share(kinds.parameters())
        of_kinds.step()
        cross_entropy(signs(encoder(points)), (points[:, 4] > 0).long()).backward()
        share([*encoder.parameters(), *signs.parameters()])
        of_rest.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
