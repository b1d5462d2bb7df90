"""Steps of milliseconds, and every tenth step a validation that takes hundreds of times as long, on all ranks.

A rhythm learnt from the training steps says that this is far too long, and the first validations come late
enough for it to be well learnt. Nothing in them is a module or a collective: metrics on the CPU.

On plain torchrun: bursts of ten steps, 8 s of silence between them; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VALIDATION_S = float(os.environ.get("VALIDATION_S", "8"))


def edit_distance(left: str, right: str) -> int:
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


def validate(generator: random.Random) -> float:
    """Mean edit distance of as many pairs as the time allows."""
    until, scores = time.monotonic() + VALIDATION_S, []
    while time.monotonic() < until:
        left, right = ("".join(generator.choices("acgt", k=200)) for _ in range(2))
        scores.append(edit_distance(left, right))
    return sum(scores) / len(scores)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(30):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step in (9, 19):
            print(f"rank {rank} distance {validate(random.Random(rank)):.1f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
