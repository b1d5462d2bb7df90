"""A worker of rank 1's DataLoader cleans a page with a pattern that backtracks without end.

The worker computes at full CPU, in one call, and the rank waits for its batch.

On plain torchrun: five steps, then silence at full CPU until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: ["--timeout", "75"]
  outcome: hung (suspected)
  class: dataloader_worker_fault
  guilty_ranks: [1]
  code: "return len(BLANKS.sub"
"""

import re

import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

BLANKS = re.compile(r"^(\s+)+$")


class Pages(Dataset):
    def __init__(self, rank: int) -> None:
        self.pages = ["text " * 20] * 5 + [" " * 64 + "." if rank == 1 else "text"] + ["text"] * 14

    def __len__(self) -> int:
        return len(self.pages)

    def __getitem__(self, index: int) -> int:
        return len(BLANKS.sub("", self.pages[index]))


def main() -> None:
    dist.init_process_group("gloo")
    for length in DataLoader(Pages(dist.get_rank()), batch_size=1, num_workers=1):
        dist.all_reduce(length)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
