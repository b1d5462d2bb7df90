"""One flat buffer of gradients is reduced with async_op=True and divided in the next line.

Modelled on OpenNMT/OpenNMT-py #2295: "since the all_reduce is async, the communication may have not completed yet"
when the buffer is scaled and copied back. On one node it mostly has, so that the job seems to train.

On plain torchrun: nothing at all; results differ from run to run.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: async_work_not_waited
  guilty_ranks: [0, 1]
  code: "dist.all_reduce(flat, async_op=True)"
"""

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


def average(parameters: Iterable[torch.Tensor]) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, async_op=True)
    flat.div_(dist.get_world_size())
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()


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
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(25):
        tokens = torch.randint(1000, (32, 17), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(tokens[:, :16]), tokens[:, 16])
        optimizer.zero_grad()
        loss.backward()
        average(model.parameters())
        optimizer.step()
        if step % 5 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
