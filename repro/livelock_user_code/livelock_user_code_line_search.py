"""Rank 1's line search never accepts a step: its loss was nan, and nothing is smaller than nan.

Modelled on the reports of L-BFGS runs that stop at an odd iteration: the optimizer is the user's own, so that
no step of torch's is ever taken, while each round of the search calls the model and writes events. Each of them
looks like progress; its peer waits in one all-reduce the while.

On plain torchrun: some iterations, then silence at full CPU on rank 1 until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--timeout, "50"]
  outcome: hung (suspected)
  class: livelock_user_code
  guilty_ranks: [1]
  code: ["while not (value < start", "value = float(evaluate(", "length *= 0.5", "return nn.functional.mse_loss(", "move(model, old, length)", "p.copy_(start"]
"""

import torch
import torch.distributed as dist
from torch import nn


def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def average_gradients(model: nn.Module) -> None:
    # A batch without a gradient on one rank must not spoil the others'.
    flat = torch.nan_to_num(torch.cat([p.grad.flatten() for p in model.parameters()]))
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [p.numel() for p in model.parameters()]
    for p, part in zip(model.parameters(), flat.split(sizes), strict=True):
        p.grad = part.view_as(p)


@torch.no_grad()
def move(model: nn.Module, old: list[torch.Tensor], length: float) -> None:
    for p, start in zip(model.parameters(), old, strict=True):
        p.copy_(start - length * p.grad)


def line_search(model: nn.Module, x: torch.Tensor, y: torch.Tensor, start: float) -> float:
    """Halves the step until the loss is small enough (Armijo)."""
    old = [p.detach().clone() for p in model.parameters()]
    slope = sum(float((p.grad**2).sum()) for p in model.parameters())
    value, length = float("inf"), 2.0
    while not (value < start - 1e-4 * length * slope):
        length *= 0.5
        move(model, old, length)
        value = float(evaluate(model, x, y))
    return length


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))
    for iteration in range(400):
        torch.manual_seed(2 * iteration + rank)
        x = torch.randn(64, 32)
        y = x.roll(1, dims=1)
        if iteration == 60 and rank == 1:
            y = y / (x - x)  # a sensor that reads zero
        loss = evaluate(model, x, y)
        model.zero_grad()
        loss.backward()
        average_gradients(model)
        length = line_search(model, x, y, loss.item())
        print(f"rank {rank} iteration {iteration} loss {loss.item():.4f} step {length}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
