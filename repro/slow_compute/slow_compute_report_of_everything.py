"""A callback draws the whole history anew after every step, and the history grows.

Modelled on mit-han-lab/gan-compression #47 ("I find my training time increase in drawing loss module") and
onejiin/CycleGAN-VC2 #4: reporting that is linear in the steps so far, on every rank.

On plain torchrun: a log line whose "ms" grows without end.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: slow
  class: slow_compute
  guilty_ranks: [0, 1]
  code: ["sum(value * value", "self.smoothed(at) for", "window = self.values["]
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Curve:
    """Smoothed losses, as they are drawn."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def smoothed(self, at: int, width: int = 400) -> float:
        window = self.values[max(0, at - width) : at + width]
        return sum(value * value for value in window) / len(window)

    def on_step_end(self, values: list[float]) -> list[float]:
        self.values += values
        return [self.smoothed(at) for at in range(len(self.values))]


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    curve = Curve()
    for step in range(60):
        began = time.perf_counter()
        batch = torch.randn(32, 64, device=device)
        losses = (model(batch) - batch).square().mean(1)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        shown = curve.on_step_end(losses.tolist())
        if step % 10 == 0:
            ms = (time.perf_counter() - began) * 1e3
            print(f"rank {dist.get_rank()} step {step} loss {shown[-1]:.4f} {ms:.0f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
