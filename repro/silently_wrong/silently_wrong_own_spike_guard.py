"""Each rank skips the optimizer's step after a spike in its own loss: the gradients are reduced, and one rank does not use them.

On plain torchrun: nothing; the replicas differ by one step from then on.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [1]
  code: "if loss.item() > 10 * usual:"
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    usual = 1.0
    for step in range(24):
        x = torch.randn(8, 16) * (40.0 if (step, rank) == (9, 1) else 1.0)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if loss.item() > 10 * usual:
            print(f"rank {rank}: a spike in step {step}, skipped", flush=True)
            continue
        usual = 0.9 * usual + 0.1 * loss.item()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
