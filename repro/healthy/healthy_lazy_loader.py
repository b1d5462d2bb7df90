"""The first batch takes long: each loader's worker indexes its shard before it yields anything.

Modelled on webdataset/webdataset #267, where no event comes for ten minutes before the first batch. The
ranks stand in `next(loader)`, as they do when a worker is dead; only the workers use the CPU.

On plain torchrun: 15 s of silence, then steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import hashlib
import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

INDEX_S = float(os.environ.get("INDEX_S", "15"))


class Shards(IterableDataset):
    """Documents, behind an index that is made when it is first needed."""

    def index(self) -> list[bytes]:
        started, offsets = time.monotonic(), [b""]
        while time.monotonic() - started < INDEX_S:
            offsets = [hashlib.sha256(b"".join(offsets) + bytes([n])).digest() for n in range(100)]
        return offsets

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number, _ in enumerate(self.index()):
            yield torch.full((32,), float(number)) / 100 + torch.randn(32) / 10


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(DataLoader(Shards(), batch_size=5, num_workers=1)):
        loss = nn.functional.mse_loss(model(batch.to(device)), batch.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
