"""Rank 0 is told to come back in 15 s by the experiment tracker, and sleeps; rank 1 waits in a barrier for it.

Every client with a back-off does this: nothing moves on any rank, no processor is
used, and yet the job goes on by itself. A tool that goes by silence alone ends a healthy run.

On plain torchrun: ten steps, 15 s of silence, ten more steps; exit code 0.

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
from torch.nn.parallel import DistributedDataParallel as DDP


class Tracker:
    """Uploads metrics; the service answers "429 Too Many Requests, Retry-After: 15" once."""

    def __init__(self) -> None:
        self.retry_after_s = [15.0]

    def upload(self, metrics: dict[str, float]) -> None:
        while self.retry_after_s:
            time.sleep(self.retry_after_s.pop())
        print(f"uploaded {metrics}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, tracker = dist.get_rank(), Tracker()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.cross_entropy(model(batch), batch[:, :10].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 9:
            if rank == 0:
                tracker.upload({"loss": loss.item()})
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
