"""Rank 0 leaves its evaluator running: a child process that is no daemon, and that the interpreter joins at its end.

The script is done, and the process does not exit, since the child waits for a checkpoint that nobody announces any more.

On plain torchrun: all steps, then the launcher never returns.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: teardown_hang
  guilty_ranks: [0]
  code: "checkpoints.get()"
"""

import multiprocessing
from multiprocessing.queues import Queue

import torch
import torch.distributed as dist


def evaluate(checkpoints: Queue) -> None:
    while True:
        checkpoint = checkpoints.get()
        print(f"evaluated {checkpoint}", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpoints = multiprocessing.get_context("fork").Queue()
    if rank == 0:
        multiprocessing.get_context("fork").Process(target=evaluate, args=(checkpoints,)).start()
    for step in range(20):
        dist.all_reduce(torch.full((8,), float(step)))
        if rank == 0 and step % 10 == 9:
            checkpoints.put(f"step-{step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
