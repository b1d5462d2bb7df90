"""Rank 1's training thread waits for its uploader forever, while its heartbeat thread goes on: log, file, CPU.

Modelled on wandb/wandb #3223, where the tracker kept the loop waiting and its own process lived on, and on
every job whose heartbeat says "alive" of a rank that is not. The heartbeat prints, writes and measures.

On plain torchrun: ten steps, then "rank 1 alive" every half second until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: local_lock_deadlock
  guilty_ranks: [1]
  code: "self.uploaded.wait()"
"""

import os
import tempfile
import threading
import time

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Heartbeat(threading.Thread):
    """Says and writes down, twice a second, how the process fares."""

    def run(self) -> None:
        me, digest = psutil.Process(), 0
        with tempfile.TemporaryFile("w") as file:
            while True:
                line = f"alive {digest % 10} cpu {me.cpu_percent()} rss {me.memory_info().rss >> 20}"
                print(f"rank {os.environ['RANK']} {line}", file=file, flush=True)
                print(f"rank {os.environ['RANK']} {line}", flush=True)
                until = time.perf_counter() + 0.008
                while time.perf_counter() < until:
                    digest = hash((digest, line))
                time.sleep(0.5)


class Uploader:
    def __init__(self) -> None:
        self.uploaded = threading.Event()

    def flush(self) -> None:
        self.uploaded.wait()  # its queue was closed, so nobody will ever set this


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    Heartbeat(daemon=True).start()
    for step in range(20):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 9 and rank == 1:
            Uploader().flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
