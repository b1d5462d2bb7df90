"""Cycles of a schedule that is begun again on purpose: model and optimizer go on, and the learning rate starts from the top.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CYCLE, CYCLES = 30, 3


def cycle(saved: bytes | None, number: int) -> bytes:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if saved is not None:
        state = torch.load(io.BytesIO(saved))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / CYCLE)
    for step in range(number * CYCLE, (number + 1) * CYCLE):
        drawn = torch.Generator().manual_seed(2 * step + dist.get_rank())
        points = torch.randn(32, 16, generator=drawn)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    checkpoint = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    return checkpoint.getvalue()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    saved = None
    for number in range(CYCLES):
        saved = cycle(saved, number)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
