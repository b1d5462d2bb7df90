"""Rank 1 has a third of the batches and shadows the others' collectives under Join; rank 0 takes long over its own.

Modelled on pytorch/pytorch #38174, which asked for it. One rank is through early, and that is right: it waits
inside `Join.__exit__` while rank 0 accumulates over many micro-batches, with seconds between its steps.

On plain torchrun: quick steps, then rank 0's alone, 7 s apart; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

STEP_S = float(os.environ.get("STEP_S", "7"))


def features(seconds: float, generator: torch.Generator) -> torch.Tensor:
    """Augments a batch for so long, without torch.nn."""
    batch, until = torch.randn(64, 64, generator=generator), time.monotonic() + seconds
    while time.monotonic() < until:
        batch = (batch @ batch.T).softmax(dim=1) @ torch.randn(64, 64, generator=generator)
    return batch


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    generator = torch.Generator().manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Join([model]):
        for step in range(12 if rank == 0 else 10):
            batch = features(STEP_S if step >= 10 else 0.02, generator).to(device)
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
