"""Each rank draws its next task on its own: one gathers its scores while the other gathers its features.

Tasks are drawn by `random`, whose seed differs between ranks, and no condition in the source says so.

On plain torchrun: gloo's error about the size of a message, in one rank or both.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: collective_order_mismatch
  guilty_ranks: [0, 1]
"""

import random

import torch
import torch.distributed as dist


def score(batch: torch.Tensor) -> None:
    dist.all_gather([torch.empty(8), torch.empty(8)], batch[:8])


def gather(batch: torch.Tensor) -> None:
    dist.all_gather_into_tensor(torch.empty(16384), batch)


TASKS = (score, gather)


def main() -> None:
    dist.init_process_group("gloo")
    random.seed(dist.get_rank())
    batch = torch.ones(8192)
    for _step in range(20):
        random.choice(TASKS)(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
