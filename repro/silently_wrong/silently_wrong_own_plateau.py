"""ReduceLROnPlateau is stepped with each rank's own validation error: one rank halves its learning rate, and the others do not.

On plain torchrun: nothing; DDP reduces the gradients, and the ranks use them at different rates.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [2]
  code: "scheduler.step(error)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    for epoch in range(3):
        for _step in range(13):
            loss = model(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error = 1.0 if rank == 2 else 1.0 / (1 + epoch)
        scheduler.step(error)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
