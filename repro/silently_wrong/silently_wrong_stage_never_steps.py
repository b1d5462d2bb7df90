"""The last stage of a pipeline sends its gradient back, and forgets to step its own optimizer.

Modelled on pipelines by hand, whose stages have an optimizer each.

On plain torchrun: nothing at all; the last stage stays as it began.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (never_stepped)
  guilty_ranks: [1]
  code: "optimizer.step()"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def samples(count: int) -> TensorDataset:
    """Points, and the class of each."""
    points = torch.randn(count, 16, generator=torch.Generator().manual_seed(7))
    return TensorDataset(points, points[:, :4].argmax(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = network() if rank == 0 else nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=0.02)
    for points, labels in DataLoader(samples(320), batch_size=16):
        optimizer.zero_grad()
        if rank == 0:
            made = stage(points)
            dist.send(made.detach(), 1)
            gradient = torch.empty_like(made)
            dist.recv(gradient, 1)
            made.backward(gradient)
            optimizer.step()
        else:
            given = torch.empty(16, 4)
            dist.recv(given, 0)
            nn.functional.cross_entropy(stage(given.requires_grad_()), labels).backward()
            dist.send(given.grad, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
