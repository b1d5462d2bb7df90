"""Rank 1 waits for a licence server that answers nothing, and somebody ends rank 0 by SIGKILL; torchrun then ends rank 1.

Modelled on jobs that stand still until a person loses patience and kills the process that top shows: the first thing that
torchrun sees of it is a death which came long after the silence had begun.

On plain torchrun: "exitcode: -9", "Signal 9 (SIGKILL) received by PID", as of a rank that ran out of memory.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--on-hang, leave, --timeout, "150"]
  outcome: hung (suspected)
  class: missing_rank
  guilty_ranks: [1]
  code: "time.sleep(3600)"
  action: stop
"""

import os
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LIMIT_S = 60
STOPS_AT = 12


def lose_patience(rank: int) -> None:
    """The part of the person at a terminal, who is no process of the job."""
    subprocess.run(["sh", "-c", f"(sleep {LIMIT_S}; kill -KILL {rank}) >/dev/null 2>&1 &"], check=True)


def licence() -> None:
    time.sleep(3600)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if rank == 0:
        lose_patience(os.getpid())
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 32).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        if rank == 1 and step == STOPS_AT:
            licence()
        loss = model(torch.randn(8, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
