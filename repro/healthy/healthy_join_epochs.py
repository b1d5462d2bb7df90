"""Ranks have unequal numbers of batches, and DDP's `join` lets them end an epoch together.

Modelled on torch's tutorial on uneven inputs. From the first epoch's end on, equal numbers of steps are no equal moments: the rank with
fewer batches makes fewer steps.

On plain torchrun: the loss of each epoch; exit code 0.

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
from torch.nn.parallel import DistributedDataParallel as DDP

BATCHES = (12, 9)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    batches = [torch.randn(32, 6) for _ in range(BATCHES[rank % 2])]
    for epoch in range(6):
        with model.join(divide_by_initial_world_size=False):
            for inputs in batches:
                loss = nn.functional.mse_loss(model(inputs), inputs.prod(1, keepdim=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"rank {rank} epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
