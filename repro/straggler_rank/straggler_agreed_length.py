"""The ranks agree on the longest sequence before each forward, and one rank tokenizes its batches much more slowly.

On plain torchrun: nothing; every step takes as long as the slow rank's batch.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: slow
  class: straggler_rank
  guilty_ranks: [1]
  code: ["str(index).encode()", "while time.monotonic() < until:"]
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset[torch.Tensor]):
    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 4 * 50

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.monotonic() + (0.03 if self.slow else 0.0)
        while time.monotonic() < until:
            str(index).encode()
        return torch.randn(16)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in DataLoader(Rows(slow=dist.get_rank() == 1), batch_size=4):
        longest = torch.tensor(batch.shape[1])
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
