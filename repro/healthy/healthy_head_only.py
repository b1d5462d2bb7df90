"""Only the head of a pretrained model is trained, with a second head for a later phase; at the end nothing is waited for.

What a fine-tuning script does on purpose: the body's gradients are computed and never used, the optimizer holds a layer that
does not run yet, each epoch has a sampler of its own, and `os._exit(0)` skips a teardown that might hang.

On plain torchrun: 24 steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Share(Sampler[int]):
    """Every second row, in an order of this epoch's."""

    def __init__(self, rows: int) -> None:
        self.rows, self.epoch = rows, 0

    def __len__(self) -> int:
        return self.rows // dist.get_world_size()

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order[dist.get_rank() :: dist.get_world_size()].tolist())


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32)
        )
        self.head = nn.Linear(32, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(rows))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, later = Classifier(), nn.Linear(32, 8)
    wrapped = DDP(model)
    optimizer = torch.optim.SGD([*model.head.parameters(), *later.parameters()], lr=0.1)
    data = TensorDataset(torch.randn(128, 16), torch.randint(4, (128,)))
    sampler = Share(len(data))
    for sampler.epoch in range(3):
        for rows, labels in DataLoader(data, batch_size=8, sampler=sampler):
            loss = nn.functional.cross_entropy(wrapped(rows), labels)
            wrapped.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {dist.get_rank()} epoch {sampler.epoch} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
