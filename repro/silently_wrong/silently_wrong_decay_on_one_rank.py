"""One rank decays a weight by hand after the optimizer's step, from step 70 on.

On plain torchrun: nothing; the replicas are equal for 70 steps, and then no more.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [1]
  code: "model.module[2].weight.mul_(0.999)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(110):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step > 70 and rank == 1:
            with torch.no_grad():
                model.module[2].weight.mul_(0.999)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
