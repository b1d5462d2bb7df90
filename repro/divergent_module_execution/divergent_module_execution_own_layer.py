"""Each rank drops a layer of its own; as many on either, of one size, so every gather of FSDP meets one and nothing stops.

Modelled on LayerDrop and stochastic depth under FSDP: which layer is left out is drawn from a generator seeded by the
rank. The gathers are paired by number, and a layer computes with one half of its own weights and one of its neighbour's.

On plain torchrun: nothing at all; it ends, with weights that belong to no model.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: divergent_module_execution
  guilty_ranks: [0, 1]
  code: "if number == dropped:"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WARM_UP = 4  # steps before the first layer is dropped


class Encoder(nn.Module):
    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.entry = nn.Linear(4, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor, dropped: int | None) -> torch.Tensor:
        x = self.entry(x)
        for number, layer in enumerate(self.layers):
            if number == dropped:
                continue
            x = x + torch.relu(layer(x))
        return x


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = Encoder().to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    drawn = (3, 1)[dist.get_rank() % 2]  # what this rank's own generator says
    for step in range(40):
        x = torch.randn(8, 4, device=device)
        loss = model(x, None if step < WARM_UP else drawn).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
