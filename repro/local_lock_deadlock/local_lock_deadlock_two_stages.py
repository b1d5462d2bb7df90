"""Ranks 0 and 3, of different stages, each wait for a batch that their own loader thread never brings; nobody has come to need rank 3 yet.

Modelled on jobs that are mended for one rank and hang again: with rank 0 alone repaired, rank 3 would stop the job.

On plain torchrun: three steps, then silence until gloo's timeout, which names ranks 1 and 2.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (proven)
  class: local_lock_deadlock
  guilty_ranks: [0, 3]
  code: "batches.get()"
"""

import os
import queue
import threading

import torch
import torch.distributed as dist

CUDA = torch.cuda.is_available()
ROWS = 1000


def load(batches: queue.Queue, rows: int) -> None:
    """The loader ends where the table does, and tells nobody."""
    for first in range(0, rows, 100):
        batches.put(torch.full((16, 16), float(first)))


def step(batch: torch.Tensor, tensor: dist.ProcessGroup, first_stage: bool, peer: int) -> torch.Tensor:
    dist.all_reduce(batch, group=tensor)
    if first_stage:
        dist.send(batch, peer)
    else:
        dist.recv(batch, peer)
    return batch.mean()


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    batches = queue.Queue(2)
    # Two of the four tables are shorter than the schedule says.
    rows = 300 if rank in (0, 3) else ROWS
    threading.Thread(target=load, args=(batches, rows), daemon=True).start()
    for number in range(ROWS // 100):
        batch = batches.get().to(device)
        mean = step(batch, groups[rank // 2], rank < 2, (rank + 2) % 4)
        print(f"rank {rank} step {number} mean {mean.item():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
