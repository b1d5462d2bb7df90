"""Rank 1 reads its shard from a slow disk: every step waits for it, and rank 0's time looks like backward.

Modelled on pytorch/pytorch #71303 (the request for straggler detection: one rank's trace alone does not
show it) and facebookresearch/SLIP #22, where loading made steps tens of times slower. A read that takes
five times as long stands in for a cold or busy volume.

On plain torchrun: completes with exit code 0 in about 14 s, at the pace of the slower rank.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: slow
  class: straggler_rank
  guilty_ranks: [1]
  code: "time.sleep(self.seek_s)"
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class VolumeReader(Dataset):
    """Samples on a network volume, with the latency that the volume has."""

    SEEK_S = {"nvme": 0.005, "archive": 0.025}

    def __init__(self, volume: str, length: int):
        self.seek_s = self.SEEK_S[volume]
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seek_s)
        return torch.full((64,), float(index)).sin()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    volume = ("nvme", "archive")[rank % 2]
    loader = DataLoader(VolumeReader(volume, length=320), batch_size=8)
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        batch = batch.to(device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
