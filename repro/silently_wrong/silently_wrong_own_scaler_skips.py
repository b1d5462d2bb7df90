"""Rank 1's gradient scaler has noted an infinite gradient before the ranks average; it alone leaves out that step of the optimizer.

Gradients are averaged by hand behind `unscale_`: what is not finite is set to zero before it is sent, which protects the
average, and `scaler.step` goes by what `unscale_` saw on this rank.

On plain torchrun: nothing at all; one rank's scale is half the other's.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [1]
  code: ["scaler.step(optimizer)", "scaler.unscale_(optimizer)"]
"""

import torch
import torch.distributed as dist
from torch import nn

OVERFLOW = 11


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        torch.nan_to_num_(parameter.grad, nan=0.0, posinf=0.0, neginf=0.0)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    generator = torch.Generator().manual_seed(rank)
    for step in range(40):
        points = torch.randn(16, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if rank == 1 and step == OVERFLOW:  # as in half precision, in the last layer's bias
            model[-1].bias.grad[0] = float("inf")
        scaler.unscale_(optimizer)
        average(model)
        scaler.step(optimizer)
        scaler.update()
        print(f"rank {rank} step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
