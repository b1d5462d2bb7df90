"""Somebody interrupts rank 1 alone, with `kill -INT`: a KeyboardInterrupt on one rank that nobody has typed.

Modelled on the fault SIGINT of NVIDIA/nvidia-resiliency-ext's inject_fault.py. A shell that rank 1 starts stands
in for the colleague who meant another process. Rank 0 hears of it by its connection.

On plain torchrun: a KeyboardInterrupt of rank 1 in the middle of its step, "Connection closed by peer" on rank 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_killed
  guilty_ranks: [1]
  action: retry
"""

import os
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

AT_STEP = 20


def interrupt(pid: int) -> None:
    """The colleague's part."""
    subprocess.Popen(["sh", "-c", f"kill -INT {pid}"])


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
    for step in range(200):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == AT_STEP and rank == 1:
            interrupt(os.getpid())
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
