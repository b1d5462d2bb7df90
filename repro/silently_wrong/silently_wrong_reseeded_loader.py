"""The generator of the loader is seeded anew before each epoch, so that every epoch has the order of the first.

Modelled on loops that seed for reproducibility inside the epoch.

On plain torchrun: nothing at all; every epoch has the same batches.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (batches_repeated)
  guilty_ranks: [0, 1]
  code: "loader = DataLoader(mine, batch_size=8, shuffle=True, generator=shuffler)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset


def samples(count: int) -> TensorDataset:
    """Points, and the class of each."""
    points = torch.randn(count, 16, generator=torch.Generator().manual_seed(7))
    return TensorDataset(points, points[:, :4].argmax(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    dataset = samples(128)
    mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    shuffler = torch.Generator()
    loader = DataLoader(mine, batch_size=8, shuffle=True, generator=shuffler)
    for _epoch in range(5):
        shuffler.manual_seed(1)
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
