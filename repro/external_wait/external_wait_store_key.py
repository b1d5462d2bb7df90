"""Rank 0 waits in the scheduler's key-value store for a go-ahead that nobody writes; three ranks wait for rank 0.

Modelled on meta-pytorch/data #659 and on every "main process first" built on a store: one side renamed its key.
The timeout was raised to a day because tokenizing takes long.

On plain torchrun: five steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (proven)
  class: external_wait
  guilty_ranks: [0]
  code: "return self.store.get(f"
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Curriculum:
    """Which data comes next, as a controller outside the job decides."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("localhost", 0, is_master=True, timeout=timedelta(days=1))
        self.store.set("curriculum/warm-up", "0.1")  # the controller writes "curriculum/stage-2" as well

    def noise(self, stage: str) -> bytes:
        return self.store.get(f"curriculum/{stage}")


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(20, 80), nn.GELU(), nn.Linear(80, 20)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    curriculum = Curriculum() if rank == 0 else None
    noise = torch.zeros((), device=device)
    for step in range(15):
        if step in (0, 5):
            if curriculum:
                noise.fill_(float(curriculum.noise("warm-up" if step == 0 else "stage_2")))
            dist.broadcast(noise, src=0)
        batch = torch.randn(8, 20, device=device) * (1 + noise)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
