"""Rank 1 counts its vocabulary for longer than rank 0's monitored barrier waits, so rank 0 gives up, and names it.

The limit suits the small corpus that the job was tried on. Nothing is stuck: rank 1 would have come some seconds later.

On plain torchrun: "Ranks 1 failed to pass monitoredBarrier in 10000 ms", raised by rank 0, which did nothing wrong.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: missing_rank
  guilty_ranks: [1]
  action: stop
  code: ["counts[word % 997] += 1", "for word in range(words):"]
"""

import time
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT = timedelta(seconds=10)


def vocabulary(words: int, until_s: float) -> Counter[int]:
    counts: Counter[int] = Counter()
    while time.monotonic() < until_s:
        for word in range(words):
            counts[word % 997] += 1
    return counts


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    # Both have the same code to run; the shard of rank 1 is far larger.
    counts = vocabulary(100_000, time.monotonic() + (0.1 if rank == 0 else 30.0))
    dist.monitored_barrier(timeout=LIMIT, wait_all_ranks=True)
    sizes = torch.tensor([len(counts)])
    dist.all_reduce(sizes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
