"""Rank 1's stream ends a few batches earlier: it is in the validation when rank 0 still trains.

Modelled on pytorch/pytorch #141069: an IterableDataset that gives ranks different numbers of batches, and the
freeze only comes two batches into the validation that follows.

On plain torchrun: a few batches on both ranks, then gloo aborts on a size, or silence (NCCL).

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: uneven_inputs
  guilty_ranks: [1]
  code: ["dist.all_reduce(total)", "for number, (features, targets) in enumerate(loader):"]
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class Records(IterableDataset):
    """Samples of this rank's part files; each file was filtered by quality, and kept another share of its lines."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        generator = torch.Generator().manual_seed(self.rank)
        for _ in range(220):
            quality = torch.rand((), generator=generator) + (0.3 if self.rank == 0 else 0.0)
            if quality > 0.4:
                yield torch.randn(20, generator=generator), int(quality * 7) % 5


@torch.no_grad()
def validate(model: nn.Module, device: torch.device) -> float:
    total = torch.zeros(1, device=device)
    for _ in range(4):
        batch = torch.randn(64, 20, device=device)
        total += model(batch).softmax(dim=1).max(dim=1).values.mean()
        dist.all_reduce(total)
    return total.item()


def train_epoch(
    model: DDP, loader: DataLoader, optimizer: torch.optim.Optimizer, device: torch.device
) -> None:
    for number, (features, targets) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(features.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} batch {number} loss {loss.item():.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Records(dist.get_rank()), batch_size=8)
    for epoch in range(3):
        train_epoch(model, loader, optimizer, device)
        score = validate(model.module, device)
        print(f"epoch {epoch} score {score:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
