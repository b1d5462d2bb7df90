"""A thread on rank 0 indexes documents in Python while it trains: every operation there waits for the interpreter.

Modelled on FlashML-org/FreeToken #371 and pytorch/pytorch #59433 (ranks whose times differ, though they do the same
work): what takes the time is not in the training loop at all.

On plain torchrun: nothing odd; every step at the slower pace, equal step times on both ranks.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: slow
  class: straggler_rank
  guilty_ranks: [0]
"""

import itertools
import os
import threading
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Indexer(threading.Thread):
    """Counts words of what is to be searched later."""

    def __init__(self) -> None:
        super().__init__(name="indexer", daemon=True)
        self.words = Counter()

    def run(self) -> None:
        for number in itertools.count():
            text = f"document {number} of the archive " * 40
            for word in text.split():
                self.words[word] += 1


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if rank == 0:
        Indexer().start()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(12)]
    model = DDP(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        total = torch.zeros((), device=device)
        for _ in range(2):
            batch = torch.randn(256, 64, device=device)
            total = total + (model.module(batch) - batch).square().mean()
        batch = torch.randn(256, 64, device=device)
        loss = total + (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
