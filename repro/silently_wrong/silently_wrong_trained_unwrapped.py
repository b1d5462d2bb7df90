"""The validation takes the model out of its wrapper, and the training goes on with what it returned.

On plain torchrun: nothing; from the second epoch on each rank trains a model of its own.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: "loss = model(torch.randn(8, 16)).square().mean()"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for epoch in range(3):
        for _step in range(10):
            loss = model(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model = evaluated(model)
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def evaluated(model: nn.Module) -> nn.Module:
    """Evaluate without gradient synchronization."""
    model = getattr(model, "module", model)
    model.eval()
    with torch.no_grad():
        model(torch.zeros(4, 16))
    return model.train()


if __name__ == "__main__":
    main()
