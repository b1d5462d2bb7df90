"""Rank 1's data source drips: a thread of it reads a few bytes a second, and no batch ever gets complete.

A socket, a tail of a log, a message broker with a keep-alive: the counters of the process move, by bytes.
Rank 1's training thread waits for the batch, rank 0 for rank 1.

On plain torchrun: ten steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: [local_lock_deadlock, external_wait]
  guilty_ranks: [1]
  code: "source.full.acquire()"
"""

import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Source(threading.Thread):
    """Collects a record from a pipe to which its producer sends nothing but keep-alives."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.full, (self.reading, self.writing) = threading.Semaphore(10), os.pipe()

    def run(self) -> None:
        record = b""
        while len(record) < 1 << 20:
            os.write(self.writing, b"keep-alive")
            record += os.read(self.reading, 4096)
            time.sleep(0.25)
        self.full.release()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = Source()
    source.start()
    for step in range(20):
        if rank == 1:
            source.full.acquire()
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
