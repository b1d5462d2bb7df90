"""Rank 0 waits for its own queue before a step; on GPUs rank 1 has issued that step and stands in a branch of its own behind it.

Modelled on jobs that print on one rank alone: the branch, which depends on the rank, has nothing to do with the hang.

On plain torchrun: steps up to 9, then silence until the backend's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: local_lock_deadlock
  guilty_ranks: [0]
  code: "batches.get()"
"""

import os
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCHES = 20


def load(batches: queue.Queue, count: int) -> None:
    for number in range(count):
        batches.put(torch.full((8, 32), float(number)))


def show(step: int, loss: torch.Tensor) -> None:
    print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 32).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    batches = queue.Queue(2)
    # Rank 0's file has half as many batches.
    count = BATCHES if dist.get_rank() else BATCHES // 2
    threading.Thread(target=load, args=(batches, count), daemon=True).start()
    for step in range(BATCHES):
        loss = model(batches.get().to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0 and dist.get_rank() == dist.get_world_size() - 1:
            show(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
