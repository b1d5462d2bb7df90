"""Rank 1 tokenizes in a multiprocessing.Pool; the kernel kills a worker, and the pool replaces it and forgets its task.

A Pool notices the death of a worker, but fails no result because of it.

On plain torchrun: five steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: local_lock_deadlock
  guilty_ranks: [1]
  code: "pool.map(tokenized"
"""

import multiprocessing
import os
import signal

import torch
import torch.distributed as dist

POISON = 5  # the document that takes all memory


def tokenized(document: int) -> float:
    if document == POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(document)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for step in range(20):
            documents = [step] if rank == 1 else [0]
            tokens = pool.map(tokenized, documents)
            dist.all_reduce(torch.tensor(tokens))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
