"""Layers with dropout are computed again in backward without the state of the generator: with other masks than in forward.

Modelled on allenai/OLMo-core#828, where `preserve_rng_state=False` was the default for blocks with dropout.

On plain torchrun: nothing at all; the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (recomputation)
  guilty_ranks: [0, 1]
  code: "checkpoint(run, "
"""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import dropout, gelu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


def layer(linear: nn.Linear, training: bool, states: torch.Tensor) -> torch.Tensor:
    return states + dropout(gelu(linear(states)), 0.3, training)


class Network(nn.Module):
    def __init__(self, width: int = 48, depth: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states = self.first(inputs)
        for linear in self.layers:
            run = functools.partial(layer, linear, self.training)
            states = checkpoint(run, states, use_reentrant=True, preserve_rng_state=False)
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
