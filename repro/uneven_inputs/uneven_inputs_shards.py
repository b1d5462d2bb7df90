"""Rank 1 has fewer batches: it leaves the loop and waits at the end while rank 0 still trains.

Modelled on pytorch/pytorch #33148 and lifeiteng/vall-e #93: the data do not divide by the ranks, and
the rank that runs out first never joins the others' all-reduces.

On plain torchrun: rank 1 says it is done, then silence; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: uneven_inputs
  guilty_ranks: [1]
  code: "dist.barrier()"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Shard(Dataset):
    """This rank's files: file i belongs to rank i % world_size, and files differ in length."""

    FILE_LENGTHS = (128, 96, 120, 64, 136, 80)

    def __init__(self, rank: int, world_size: int):
        self.length = sum(self.FILE_LENGTHS[rank::world_size])
        self.generator = torch.Generator().manual_seed(rank)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(64, generator=self.generator)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    loader = DataLoader(Shard(rank, dist.get_world_size()), batch_size=16)
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        batch = batch.to(device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    print(f"rank {rank} epoch done after {len(loader)} batches", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"parameters: {sum(p.numel() for p in model.parameters())}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
