"""Gradients are averaged layer by layer, and the layers' own scale and the learned positions are in none of them.

Modelled on lucidrains/vector-quantize-pytorch#222 (parameters outside the exchange).

On plain torchrun: nothing at all; the layers stay equal on both ranks, positions and scale drift apart.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: "if isinstance(layer, AVERAGED):"
"""

import torch
import torch.distributed as dist
from torch import nn

AVERAGED = (nn.Linear, nn.LayerNorm)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(8, 24), nn.LayerNorm(24), nn.Linear(24, 4)
        self.positions = nn.Parameter(0.1 * torch.randn(6, 24))
        self.scale = nn.Parameter(torch.ones(24))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mixed = torch.tanh(self.embed(inputs) + self.positions) * self.scale
        return self.head(self.norm(mixed).mean(1))


def exchange(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, AVERAGED):
            for parameter in layer.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(20):
        inputs = torch.randn(24, 6, 8, generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, 0, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        exchange(model)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
