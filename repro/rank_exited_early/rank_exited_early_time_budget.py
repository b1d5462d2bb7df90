"""Rank 2 of 4 finds that its time is up and returns from main; its peers go on into the next backward.

Modelled on the issue in ai2cm/ace #1068: a rank that leaves with exit code 0 looks like a success to the launcher,
which leaves its siblings alone. Each rank reads its own clock, and rank 2's began earlier.

On plain torchrun: "time is up" from rank 2, "Connection closed by peer" from the others, one of them blamed.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [crashed, hung (suspected)]
  class: rank_exited_early
  guilty_ranks: [2]
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BUDGET_S = 60.0


class Budget:
    """Stops in time to be restarted elsewhere."""

    def __init__(self, rank: int) -> None:
        queued_s = 58.5 if rank == 2 else 2.0  # its node was allocated long before the others
        self.deadline = time.monotonic() + BUDGET_S - queued_s

    def is_spent(self) -> bool:
        return time.monotonic() > self.deadline


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    budget = Budget(rank)
    for step in range(2000):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if budget.is_spent():
            print(f"rank {rank}: time is up after step {step}", flush=True)
            return
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
