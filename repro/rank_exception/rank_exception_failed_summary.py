"""A label that no class has ends rank 1's training; the summary in `finally` then fails for want of losses, and hides it.

A clean-up that assumes a run of full length raises an error of its own, which is the last one that the log shows.

On plain torchrun: eight steps, then two tracebacks of each rank, which end in the summary's error.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_exception
  guilty_ranks: [1]
  code: "nn.functional.cross_entropy(model(inputs), targets)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS = 40


class Journal:
    """Losses of the run, and what it prints of them at its end."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def finish(self) -> None:
        late = self.losses[STEPS // 2 :]
        print(f"best loss of the second half: {min(late):.3f}", flush=True)


def rows(rank: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(STEPS * 8, 12, generator=generator)
    targets = inputs[:, :5].argmax(1)
    targets[70] += 9 * rank
    return TensorDataset(inputs, targets)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, journal: Journal) -> None:
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        journal.losses.append(loss.item())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 5)))
    optimizer, journal = torch.optim.Adam(model.parameters()), Journal()
    try:
        train(model, optimizer, DataLoader(rows(dist.get_rank()), batch_size=8), journal)
    finally:
        journal.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
