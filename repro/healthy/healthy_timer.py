"""Rank 0 waits for an event that a threading.Timer sets; rank 1 waits for it in a broadcast.

Uploads and leases are paced so: a callback is due at a time, and until then nothing in the process runs, and no other
thread of it has a line of the user's on its stack.

On plain torchrun: twenty steps with 15 s of silence after the fifth; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RENEWED_AFTER_S = float(os.environ.get("RENEWED_AFTER_S", "15"))


def renew_lease() -> None:
    renewed = threading.Event()
    threading.Timer(RENEWED_AFTER_S, renewed.set).start()
    renewed.wait()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Linear(16, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    leases = torch.zeros(1, device=device)
    for step in range(20):
        if step == 5:
            if rank == 0:
                renew_lease()
                leases += 1
            dist.broadcast(leases, src=0)
        loss = model(torch.randn(32, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
