"""Gradients are cleared before each micro-batch instead of once a step: of four, the last one alone is trained on.

Modelled on loops that were given accumulation later, in which `zero_grad` stayed where it was.

On plain torchrun: nothing at all; the loss falls, more slowly.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (cleared_between_backwards)
  guilty_ranks: [0, 1]
  code: "optimizer.zero_grad()"
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATION = 4


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for _ in range(60):
        for micro_batch in range(ACCUMULATION):
            inputs = torch.randn(16, 16)
            targets = inputs[:, :4].argmax(1).to(device)
            last = micro_batch == ACCUMULATION - 1
            with contextlib.nullcontext() if last else model.no_sync():
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs.to(device)), targets)
                (loss / ACCUMULATION).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
