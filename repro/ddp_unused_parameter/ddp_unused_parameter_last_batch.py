"""Rank 1's last batch has no audio, so that one encoder gets no gradient; DDP says nothing, because no forward follows.

Modelled on the reports behind DDP's "finished reduction" error, one step later: the error is raised by the *next*
forward. Behind the last batch of an epoch comes an evaluation's barrier instead, and rank 0 waits in backward.

On plain torchrun: silence after the last step of rank 1; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: ddp_unused_parameter
  guilty_ranks: [1]
  code: ["scores = model(", "if sound is not None"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 12


class Clip(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.frames = nn.Conv1d(12, dim, 3)
        self.sound = nn.Sequential(nn.Linear(40, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.head = nn.Linear(dim, 10)

    def forward(self, frames: torch.Tensor, sound: torch.Tensor | None) -> torch.Tensor:
        x = self.frames(frames).mean(-1)
        if sound is not None:
            x = x + self.sound(sound)
        return self.head(x)


def load(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    frames = torch.randn(16, 12, 20)
    is_silent = rank == 1 and step == STEPS - 1  # a batch of silent films
    return frames, None if is_silent else torch.randn(16, 40)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Clip().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        frames, sound = load(rank, step)
        scores = model(frames.to(device), sound if sound is None else sound.to(device))
        loss = nn.functional.cross_entropy(scores, torch.arange(16, device=device) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    print(f"rank {rank} evaluates", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
