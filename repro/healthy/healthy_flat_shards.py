"""FSDP1 with the original parameters: the first rank's shard has none of the last layer, and four micro-batches are one step.

Modelled on transformers and accelerate, which wrap with `use_orig_params=True`.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

ACCUMULATION = 4


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    model = FullyShardedDataParallel(layers, use_orig_params=True, device_id=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    torch.manual_seed(dist.get_rank())
    for _ in range(40):
        for micro_batch in range(ACCUMULATION):
            reduces = micro_batch == ACCUMULATION - 1
            with contextlib.nullcontext() if reduces else model.no_sync():
                inputs = torch.randn(16, 16, device=device)
                loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
                (loss / ACCUMULATION).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
