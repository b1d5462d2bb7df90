"""Each rank's own keys come first among those of all ranks, so that its targets are 0, 1, 2, ... on every rank.

Modelled on facebookresearch/DPR and SimCLR, which put what a rank computed itself, with a gradient, before what it gathered.

On plain torchrun: nothing; the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

ROWS, TEMPERATURE = 12, 0.1


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    drawn = torch.Generator().manual_seed(rank)
    for _ in range(24):
        points = torch.randn(ROWS, 20, generator=drawn)
        noisy = points + 0.2 * torch.randn(ROWS, 20, generator=drawn)
        asked, keys = normalize(model(torch.cat([noisy, points]))).chunk(2)
        everyone = [torch.empty_like(keys) for _ in range(world)]
        dist.all_gather(everyone, keys.detach().contiguous())
        every = torch.cat([keys, *(other for at, other in enumerate(everyone) if at != rank)])
        loss = cross_entropy(asked @ every.T / TEMPERATURE, torch.arange(ROWS))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
