"""Rank 1 locks the tokenizer's cache file, which a process that is left from an earlier job still holds.

The lock belongs to an open file: the process that has it open keeps the lock for as long as it lives.

On plain torchrun: five steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: external_wait
  guilty_ranks: [1]
  code: "fcntl.flock(cache, fcntl.LOCK_EX)"
"""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

HOLDER = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(900)"


def cached(path: str, step: int) -> torch.Tensor:
    """The tokens of a step, from the cache that all jobs of the machine share."""
    with Path(path).open("w") as cache:
        fcntl.flock(cache, fcntl.LOCK_EX)
        return torch.full((8,), float(step))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with tempfile.NamedTemporaryFile() as file:
        holder = [sys.executable, "-c", HOLDER, file.name]
        for step in range(20):
            if rank == 1 and step == 5:
                left = subprocess.Popen(holder, stdout=subprocess.PIPE)
                left.stdout.readline()
            dist.all_reduce(cached(file.name, step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
