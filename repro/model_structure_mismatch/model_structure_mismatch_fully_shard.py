"""Rank 1 sizes its vocabulary by its own shard: fully_shard wraps models of other shapes, and compares nothing.

DDP compares models when it wraps them; FSDP2 gathers what it gets.

On plain torchrun: gloo's error about the size of a message in the first all_gather.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: model_structure_mismatch
  guilty_ranks: [1]
  code: "model(torch.arange(8))"
  parameter: 0.weight
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    vocabulary = 640 if rank == 1 else 512
    model = nn.Sequential(nn.Embedding(vocabulary, 32), nn.Linear(32, 64), nn.Linear(64, 32))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(20):
        loss = model(torch.arange(8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
