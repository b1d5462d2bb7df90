"""Two stages work by turns: the first is given its last gradient when the second is done, and is behind it in each step by construction.

Modelled on pipelines without micro-batches, whose stages agree on a norm before they step: then the second waits for the first.

On plain torchrun: a line every ten steps; the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

ROWS, WIDTH, LIMIT = 32, 64, 1.0
SCAN_S = (0.09, 0.02)  # the first stage has most of the layers


class Stage(nn.Module):
    def __init__(self, scan_s: float) -> None:
        super().__init__()
        self.scan_s = scan_s
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())

    def scan(self, x: torch.Tensor) -> torch.Tensor:
        state, until = torch.zeros_like(x), time.monotonic() + self.scan_s
        with torch.no_grad():
            while time.monotonic() < until:  # a recurrent scan without a kernel of its own
                state = 0.9 * state + 0.1 * x
        return x + self.mlp(x + state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.scan, x, use_reentrant=False)


def learn(stage: nn.Module, rank: int, points: torch.Tensor) -> float:
    """Forward through both stages, and back."""
    if rank == 0:
        hidden = stage(points)
        dist.send(hidden.detach(), 1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, 1)
        hidden.backward(gradient)
        return 0.0
    hidden = torch.empty(ROWS, WIDTH)
    dist.recv(hidden, 0)
    loss = nn.functional.mse_loss(stage(hidden.requires_grad_()), points)
    loss.backward()
    dist.send(hidden.grad, 0)
    return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(rank := dist.get_rank())
    stage = Stage(SCAN_S[rank])
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    drawn = torch.Generator().manual_seed(0)
    for step in range(30):
        loss = learn(stage, rank, torch.randn(ROWS, WIDTH, generator=drawn))
        norm = torch.stack([p.grad.square().sum() for p in stage.parameters()]).sum()
        dist.all_reduce(norm)
        for parameter in stage.parameters():
            parameter.grad *= min(1.0, LIMIT / norm.sqrt().item())
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
