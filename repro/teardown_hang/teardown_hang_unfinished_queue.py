"""Rank 1 waits at its end for a queue of logs whose consumer skipped one; rank 0 is done and has exited.

The script ends without destroy_process_group, as many do: only the peer's normal exit shows that the work was over.

On plain torchrun: all steps, then the launcher never returns.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: teardown_hang
  guilty_ranks: [1]
  code: "lines.join()"
"""

import queue
import threading

import torch
import torch.distributed as dist


def write(lines: queue.Queue[str]) -> None:
    while line := lines.get():
        if "nan" not in line:
            print(line, flush=True)
            lines.task_done()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=write, args=(lines,), name="log", daemon=True).start()
    for step in range(20):
        loss = torch.full((8,), float(step))
        dist.all_reduce(loss)
        lines.put(f"loss {'nan' if (rank, step) == (1, 7) else step}")
    lines.join()


if __name__ == "__main__":
    main()
