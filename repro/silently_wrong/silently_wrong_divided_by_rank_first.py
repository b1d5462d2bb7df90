"""Each rank keeps its slice of the table, and a sampler takes a share of that slice: of two ranks each reads a quarter.

On plain torchrun: nothing at all.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (shares_of_parts)
  guilty_ranks: [0, 1]
  code: ["sampler = DistributedSampler(part, seed=4)"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    points = torch.randn(160, 6, generator=torch.Generator().manual_seed(1))
    whole = TensorDataset(points, points.norm(dim=1, keepdim=True))
    part = Subset(whole, range(rank * 160 // world, (rank + 1) * 160 // world))
    sampler = DistributedSampler(part, seed=4)
    loader = DataLoader(part, batch_size=8, sampler=sampler)
    torch.manual_seed(2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for given, wanted in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(given), wanted).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
