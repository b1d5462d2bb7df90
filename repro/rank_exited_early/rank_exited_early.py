"""Rank 1 is told that its node will be taken away, saves and exits with code 0; rank 0 trains on alone.

Modelled on Lightning-AI/pytorch-lightning #20825 (the notice reaches one rank, the others go on to the
next batch) and pytorch/pytorch #72099 (`exit()` behind a condition that holds on one rank only). A clean
exit leaves no failure to find: torchrun blames the survivor.

On plain torchrun: rank 0's "Connection closed by peer" with exit code 1, named as the root cause; 5 s.
With NCCL rank 0 waits instead.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: rank_exited_early
  guilty_ranks: [1]
  code: "sys.exit(0)"
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SpotNotice:
    """The cloud's notice for this node: rank 1's comes a second after the start of training."""

    def __init__(self, rank: int):
        self.due = time.monotonic() + 1.0 if rank % 2 == 1 else float("inf")

    def received(self) -> bool:
        return time.monotonic() > self.due


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    notice = SpotNotice(rank)
    for step in range(600):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        time.sleep(0.1)  # the rest of the pipeline
        if notice.received():
            print(f"rank {rank} was asked to leave after step {step}", flush=True)
            sys.exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
