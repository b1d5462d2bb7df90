"""Layers with dropout are computed again in backward without the state of the generator, and seed their masks themselves.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import dropout, gelu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Layer(nn.Linear):
    def forward(self, states: torch.Tensor, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return states + dropout(gelu(super().forward(states)), 0.3, self.training)


class Network(nn.Module):
    def __init__(self, width: int = 48, depth: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(Layer(width, width) for _ in range(depth))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states = self.first(inputs)
        for layer in self.layers:
            seed = int(torch.randint(1 << 30, ()))
            states = checkpoint(layer, states, seed, use_reentrant=False, preserve_rng_state=False)
        return self.last(states)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(40):
        inputs = torch.randn(32, 16)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
