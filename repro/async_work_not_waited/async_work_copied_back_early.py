"""Gradients in bfloat16 are reduced in float32 with async_op=True, and copied back in the next line; the waits come at the end.

Modelled on a review of NERSC/sc24-dl-tutorial #1: "the grad buffer copy can fire off too early, leading to data corruption".
Every handle is kept and waited for, so none is missing: but what was copied back is each rank's own gradient.

On plain torchrun: nothing at all; each rank trains a model of its own.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: async_work_not_waited
  guilty_ranks: [0, 1]
  code: "parameter.grad.copy_(grad / world)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn


def average(model: nn.Module) -> None:
    world, works = dist.get_world_size(), []
    for parameter in model.parameters():
        grad = parameter.grad.float()
        works.append(dist.all_reduce(grad, async_op=True))
        parameter.grad.copy_(grad / world)
    for work in works:
        work.wait()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Embedding(1000, 64), nn.Flatten(), nn.Linear(64 * 16, 256), nn.ReLU(), nn.Linear(256, 1000)
    )
    model = model.to(device, torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(25):
        tokens = torch.randint(1000, (32, 17), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(tokens[:, :16]), tokens[:, 16])
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
        if step % 5 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
