"""A stream is divided by rank and not by worker: each of the loader's two workers reads all of the rank's share.

On plain torchrun: nothing at all.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (read_by_each_worker)
  guilty_ranks: [0, 1]
  code: ["for given, wanted in DataLoader(Records(rank, world), batch_size=6, num_workers=2):"]
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Records(IterableDataset):
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(self.rank, 120, self.world):
            point = torch.randn(7, generator=torch.Generator().manual_seed(number))
            yield point, point.sum()[None]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(7, 14), nn.GELU(), nn.Linear(14, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for given, wanted in DataLoader(Records(rank, world), batch_size=6, num_workers=2):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(given), wanted).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
