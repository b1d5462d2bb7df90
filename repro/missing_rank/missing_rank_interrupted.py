"""Rank 1 waits for a licence server that answers nothing, and somebody interrupts torchrun, which hands the SIGINT on to its ranks.

Modelled on Ctrl-C in the terminal of a job that stands still, watched from a line of its own code: each rank ends by a
KeyboardInterrupt, from wherever it was, and none of these is what went wrong.

On plain torchrun: a KeyboardInterrupt of each rank, and nothing on the 20 seconds before.

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

import nsadiag

LIMIT_S = 30
STOPS_AT = 12


def interrupt(launcher: int) -> None:
    """The part of the person at the terminal."""
    subprocess.run(["sh", "-c", f"(sleep {LIMIT_S}; kill -INT {launcher}) >/dev/null 2>&1 &"], check=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if rank == 0:
        interrupt(os.getppid())
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 32).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        if rank == 1 and step == STOPS_AT:
            time.sleep(3600)  # the licence server
        loss = model(torch.randn(8, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with nsadiag.watch():
        main()
