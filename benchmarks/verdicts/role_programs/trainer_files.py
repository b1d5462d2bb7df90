"""A trainer under torchrun that takes batches from files, and leaves its weights in files."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist
from common import CASE, QUIET_S, SHARED, STEPS, begun, model, weights_group
from torch.nn.parallel import DistributedDataParallel


def batch(step: int) -> list[float]:
    path = SHARED / f"rollouts_{step}.pt"
    while not path.exists():
        time.sleep(0.5)
    return torch.load(path)


def publish(net: torch.nn.Module, step: int) -> None:
    folder = SHARED / f"step_{step}"
    folder.mkdir(exist_ok=True)
    torch.save(net.state_dict(), folder / "weights.pt")
    if CASE == "stale_marker" and step == 3:
        begun()
        return
    (folder / "STABLE").touch()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = model()
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    if CASE == "resumed":
        if rank == 0:
            weights_group("weights", 0, 2)
            begun()
        batch(1)
    for step in range(1, STEPS):
        values = batch(step)
        if CASE == "long_epoch" and step == 3:
            if rank == 0:
                begun()
            until = time.monotonic() + QUIET_S
            while time.monotonic() < until:
                ddp(torch.randn(64, 64)).sum().backward()
        ddp(torch.full((8, 64), values[0]).clamp(-1, 1)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if CASE == "upload" and step == 3 and rank == 0:
            begun()
            time.sleep(QUIET_S)
        if CASE == "publisher_lock" and step == 3 and rank == 0:
            begun()
            threading.Event().wait()
        if CASE == "policy_guard" and step == 2 and rank == 0:
            begun()
        if rank == 0:
            publish(net, step)
        dist.barrier()


if __name__ == "__main__":
    main()
