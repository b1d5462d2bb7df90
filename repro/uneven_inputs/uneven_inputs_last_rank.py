"""The last rank has a batch less, comes to the end of the script and is gone, while rank 0 waits for its gradients.

Modelled on k2-fsa/snowfall #152: samples are shared out by rounding up, the last rank gets the rest, and the
ranks with more of them never get their reduction.

On plain torchrun: rank 1 ends with exit code 0; rank 0 raises a connection error (gloo) or waits (NCCL).

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (suspected)]
  class: uneven_inputs
  guilty_ranks: [1]
  code: ["for start in range(0, len(mine), BATCH):", "dist.destroy_process_group()"]
"""

import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SAMPLES, BATCH = 145, 8


def share(samples: int, rank: int, world_size: int) -> list[int]:
    """This rank's samples: contiguous, rounded up."""
    each = math.ceil(samples / world_size)
    return list(range(rank * each, min((rank + 1) * each, samples)))


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(24, 48, batch_first=True)
        self.output = nn.Linear(48, 30)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.output(self.encoder(features)[0])


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    mine = share(SAMPLES, rank, dist.get_world_size())
    model = DDP(Recogniser().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for start in range(0, len(mine), BATCH):
        size = len(mine[start : start + BATCH])
        features, labels = (
            torch.randn(size, 12, 24, device=device),
            torch.randint(30, (size, 12), device=device),
        )
        loss = nn.functional.cross_entropy(model(features).transpose(1, 2), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        print(f"rank {rank} samples {start}-{start + size} loss {loss.item():.3f}", flush=True)
    print(f"rank {rank} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
