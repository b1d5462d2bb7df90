"""Each rank clips by the norm of its own gradients, and the gradients are averaged after that.

Modelled on deepspeedai/DeepSpeed #1801, where BLOOM-176B's gradients were clipped by norms that were each rank's own: the
batch decides by its shares how much of it counts.

On plain torchrun: nothing at all; the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (clipped_before_reduction)
  guilty_ranks: [0, 1]
  code: "clip_grad_norm_(model.parameters(), 0.1)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    torch.manual_seed(10 + rank)
    for step in range(12):
        batch = torch.randn(24, 12, device=device)
        loss = nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        average(model)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
