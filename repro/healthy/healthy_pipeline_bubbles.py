"""Four pipeline stages of some seconds each: whoever is not at work waits in recv, the first stage longest.

Modelled on pytorch/pytorch #188833 and #172668, about bubbles in pipelines: with few micro-batches the stages
wait for most of a step, since the first micro-batch has to go all the way before anything comes back.

On plain torchrun: a line every twenty seconds from the last stage; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

MICRO_BATCHES = 2
SCAN_S = float(os.environ.get("SCAN_S", "2.5"))


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, until = torch.zeros_like(x), time.monotonic() + SCAN_S
        with torch.no_grad():
            while time.monotonic() < until:  # a recurrent scan without a kernel of its own
                state = 0.9 * state + 0.1 * x
        return x + self.mlp(x + state)


def train_step(stage: Stage, rank: int, device: torch.device) -> float:
    """All forwards, then all backwards."""
    last, done, loss = dist.get_world_size() - 1, [], torch.zeros(())
    for _ in range(MICRO_BATCHES):
        x = torch.randn(8, 64, device=device)
        if rank > 0:
            dist.recv(x, rank - 1)
        y = stage(x.requires_grad_())
        if rank < last:
            dist.send(y.detach(), rank + 1)
        done.append((x, y))
    for x, y in done:
        if rank == last:
            (loss := y.square().mean() / MICRO_BATCHES).backward()
        else:
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return loss.item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(rank := dist.get_rank())
    stage = Stage().to(device)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    for step in range(3):
        optimizer.zero_grad()
        loss = train_step(stage, rank, device)
        optimizer.step()
        if rank == 3:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
