"""The link of rank 2 slows down to nothing in the middle of an epoch, and nobody is told: four ranks in one sum.

Modelled on NVIDIA/nccl #306, where a switch dropped or held back what it was given, and all ranks stood in the
same all-reduce. Here the kernel is asked to pace rank 2's connections to a byte a second; no root is needed.

On plain torchrun: silence after step 4 on all ranks, each in its backward.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (suspected)
  class: network_stall
  guilty_ranks: [2]
  action: retry
  code: "loss.backward()"
"""

import contextlib
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SO_MAX_PACING_RATE = 47
SLOW_FROM, RANK_BEHIND_IT = 5, 2


def pace(bytes_per_s: int) -> None:
    """What this process sends on its TCP connections leaves at that rate from here on."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getpeername():
                copy.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, bytes_per_s)


class Classifier(nn.Module):
    def __init__(self, width: int, classes: int):
        super().__init__()
        self.encoder = nn.GRU(32, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.encoder(x)
        return self.head(states.mean(1))


def main() -> None:
    dist.init_process_group("gloo")  # the model stays on the CPU: it is the network that matters
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Classifier(width=192, classes=12))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(40):
        if step == SLOW_FROM and rank == RANK_BEHIND_IT:
            pace(bytes_per_s=1)
        x = torch.randn(8, 20, 32, generator=generator)
        labels = torch.randint(12, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
