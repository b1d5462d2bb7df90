"""Gradients of FSDP's shards are clipped by a norm that each rank takes over its own shards, and no rank adds up.

Modelled on sgl-project/SpecForge#663 (clipping of local shards).

On plain torchrun: nothing at all; the halves of each weight get gradients of other scales.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (own_shard_factors)
  guilty_ranks: [0, 1]
  code: "factor = min(1.0, LIMIT / (float(norm) + 1e-6))"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LIMIT = 0.05


def clip(model: nn.Module) -> None:
    shards = [parameter.grad.to_local() for parameter in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(shard) for shard in shards]))
    factor = min(1.0, LIMIT / (float(norm) + 1e-6))
    torch._foreach_mul_(shards, factor)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for _step in range(16):
        inputs = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :6].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        clip(model)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
