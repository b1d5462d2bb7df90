"""Tensor parallelism by DTensor over parts of a sequence; the plan leaves out the norm, which sees one part on each rank.

Modelled on pytorch/pytorch#102280 (norms under sequence parallelism).

On plain torchrun: nothing at all; the copies of the norm drift apart.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (partial_gradients)
  guilty_ranks: [0, 1]
  code: "parallelize_module(model, mesh, plan)"
  parameter: "norm.weight"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 24


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 80, bias=False), nn.Linear(80, WIDTH, bias=False)

    def forward(self, part: torch.Tensor) -> torch.Tensor:
        return part + self.down(torch.relu(self.up(self.norm(part))))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Layer()
    up, down = ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel(output_layouts=Shard(0))
    plan = {"up": up, "down": down}
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    generator = torch.Generator().manual_seed(1)
    for _step in range(20):
        tokens = torch.randn(12, WIDTH, generator=generator)
        part, targets = (whole.chunk(world)[rank] for whole in (tokens, tokens.cos()))
        loss = (model(part) - targets).square().sum() / tokens.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
