"""Rank 1 puts its last metrics into a queue whose reader has ended: at exit the queue's thread waits for room in the pipe.

On plain torchrun: everything is done and printed, and the job does not end.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: teardown_hang
  guilty_ranks: [1]
  code: "queue.put(row.tolist())"
"""

import multiprocessing

import torch
import torch.distributed as dist


def write(queue: "multiprocessing.Queue[torch.Tensor]") -> None:
    for _ in range(5):
        queue.get()


def main() -> None:
    dist.init_process_group("gloo")
    queue: multiprocessing.Queue[list[float]] = multiprocessing.get_context("spawn").Queue()
    writer = multiprocessing.get_context("spawn").Process(target=write, args=(queue,))
    writer.start()
    for step in range(8):
        row = torch.full((1 << 16,), float(step))
        dist.all_reduce(row)
        if dist.get_rank() == 1 or step < 5:
            queue.put(row.tolist())
    writer.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
