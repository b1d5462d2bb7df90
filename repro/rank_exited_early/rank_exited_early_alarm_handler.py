"""Rank 0's handler of a signal saves and calls sys.exit(0); rank 1 was never told.

Modelled on ai2cm/ace #1068: "the signal handler used sys.exit(0), which makes torchrun think the process exited
successfully", and its siblings hang on the next collective. Here the scheduler warns the first rank of a node only.

On plain torchrun: "saved, leaving" from rank 0, then rank 1's connection error, and rank 1 is blamed.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: rank_exited_early
  guilty_ranks: [0]
  code: "sys.exit(0)"
"""

import os
import signal
import sys
import time
from types import FrameType

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def leave(number: int, frame: FrameType | None) -> None:
    print("rank 0: saved, leaving", flush=True)
    sys.exit(0)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if rank == 0:  # the scheduler's warning, two seconds before it takes the node
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, 2.0)
    for step in range(2000):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
