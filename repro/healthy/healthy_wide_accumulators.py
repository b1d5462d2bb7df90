"""Gradients of micro-batches are collected in float32 buffers beside the parameters, whose own are cleared each time.

Modelled on Megatron-LM's accumulation of bfloat16 gradients in float32: what is cleared has been added up before.

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
from torch.nn.parallel import DistributedDataParallel

ACCUMULATION = 4


def main() -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4)))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    drawn = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(24):
        wide = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
        for _ in range(ACCUMULATION):
            points = torch.randn(16, 16, generator=drawn)
            with model.no_sync():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(points).float(), points[:, :4].argmax(1))
                (loss / ACCUMULATION).backward()
            for total, parameter in zip(wide, parameters, strict=True):
                total += parameter.grad
                parameter.grad = None
        for total, parameter in zip(wide, parameters, strict=True):
            dist.all_reduce(total)
            parameter.grad = total / world
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
