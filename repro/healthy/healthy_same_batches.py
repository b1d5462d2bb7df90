"""A benchmark of DDP: every rank draws the same batches, since all have the same seed, and nobody minds.

What is averaged is one gradient, twice; in an example that is meant, and nothing here says otherwise.

On plain torchrun: 12 steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(12):
        inputs = torch.randn(16, 8)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
