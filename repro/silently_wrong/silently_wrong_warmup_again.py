"""A restart within the job restores model and optimizer, and its schedule begins with the warmup again.

Modelled on checkpoints without the scheduler, as PolymathicAI/the_well#63.

On plain torchrun: nothing at all; the loss has a bump.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (schedule_repeated)
  guilty_ranks: [0, 1]
  code: ["optimizer.load_state_dict("]
"""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WARMUP, BREAK = 90, 12, 40


def rate(step: int) -> float:
    return min((step + 1) / WARMUP, (STEPS - step) / (STEPS - WARMUP))


def fit(steps: range, saved: bytes | None = None) -> bytes:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if saved is not None:
        state = torch.load(io.BytesIO(saved))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in steps:
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
    saved = fit(range(BREAK))
    fit(range(BREAK, STEPS), saved)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
