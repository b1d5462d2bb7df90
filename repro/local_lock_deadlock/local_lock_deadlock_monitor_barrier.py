"""Rank 1's training thread waits forever, while a monitor on both ranks meets in a barrier every half second.

Home-made watchdogs do this: a thread, a process group of its own, a barrier now and then, "all ranks alive".
Collectives go on being issued and completed, on every rank; the training's own group stands.

On plain torchrun: ten steps, then "all alive" forever.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: local_lock_deadlock
  guilty_ranks: [1]
  code: "batches.get()"
"""

import os
import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def monitor(group: dist.ProcessGroup, rank: int) -> None:
    while True:
        dist.barrier(group=group)
        if rank == 0:
            print("all alive", flush=True)
        time.sleep(0.5)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    control = dist.new_group(backend="gloo")
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches: queue.Queue[torch.Tensor] = queue.Queue()
    # Its producer stops early on rank 1.
    for _ in range(20 if rank == 0 else 10):
        batches.put(torch.randn(16, 64))
    threading.Thread(target=monitor, args=(control, rank), daemon=True).start()
    for step in range(20):
        batch = batches.get().to(device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
