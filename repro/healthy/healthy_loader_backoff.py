"""The store says "slow down": rank 1's loader worker waits 20 s before it asks again, then data flow as before.

Modelled on awslabs/mountpoint-s3 #743, where training with DDP met throttling errors and was given a longer
backoff. For that time nobody uses a CPU: the worker sleeps, its rank waits for it, and rank 0 waits for that rank.

On plain torchrun: twelve steps, 20 s of silence, twelve more; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

RETRY_AFTER_S = float(os.environ.get("RETRY_AFTER_S", "20"))


class SlowDown(Exception):
    pass


class Bucket(IterableDataset):
    """Objects of one prefix, in order."""

    def __init__(self, rank: int) -> None:
        self.rank, self.throttled = rank, rank == 1

    def get(self, key: int) -> torch.Tensor:
        if self.throttled and key == 12 * 8:
            self.throttled = False
            raise SlowDown
        generator = torch.Generator().manual_seed(1000 * self.rank + key)
        return torch.randn(3, 16, 16, generator=generator)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for key in range(24 * 8):
            try:
                image = self.get(key)
            except SlowDown:
                time.sleep(RETRY_AFTER_S)
                image = self.get(key)
            yield image


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    encoder = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(784, 32))
    decoder = nn.Sequential(nn.Linear(32, 3 * 16 * 16), nn.Unflatten(1, (3, 16, 16)))
    model = DDP(nn.Sequential(encoder, decoder).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Bucket(rank), batch_size=8, num_workers=1, prefetch_factor=2)
    for step, images in enumerate(loader):
        images = images.to(device)
        loss = nn.functional.mse_loss(model(images), images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
