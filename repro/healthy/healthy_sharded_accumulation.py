"""FSDP2 accumulates two micro-batches before it reduces: until then their gradients lie in no parameter.

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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

ACCUMULATION = 2


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(40):
        for micro_batch in range(ACCUMULATION):
            model.set_requires_gradient_sync(micro_batch == ACCUMULATION - 1)
            inputs = torch.randn(16, 16)
            loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
            (loss / ACCUMULATION).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
