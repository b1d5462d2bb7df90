"""Each rank takes the files whose `hash(name) % world_size` is its rank, and Python salts that hash in every process.

The usual form of it is a dataset that "shuffles deterministically" by a hash of the file's name: some files go to several
ranks and some to none, and which ones differs from run to run.

On plain torchrun: nothing at all.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (unstable_hash)
  guilty_ranks: [0, 1]
  code: ["return hash(name) % self.world_size"]
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Shards:
    """The files of one rank."""

    def __init__(self, names: list[str], rank: int, world_size: int) -> None:
        self.world_size = world_size
        self.names = [name for name in names if self.owner(name) == rank]

    def owner(self, name: str) -> int:
        return hash(name) % self.world_size

    def batches(self, count: int) -> Iterator[torch.Tensor]:
        for number in range(count):
            name = self.names[number % len(self.names)]
            generator = torch.Generator().manual_seed(int(name.split("-")[1]))
            yield torch.randn(16, 8, generator=generator)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    shards = Shards([f"shard-{number:03d}" for number in range(64)], dist.get_rank(), dist.get_world_size())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, batch in enumerate(shards.batches(24)):
        loss = (model(batch.to(device)).squeeze(1) - batch.to(device).sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
