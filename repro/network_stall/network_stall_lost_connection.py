"""After some steps nothing that rank 1 is sent arrives any more, and no connection is closed: all wait in one sum.

Modelled on horovod/horovod #3611 and NVIDIA/nccl #706: a firewall or a flapping link forgets connections that
both ends believe in. Here the kernel is told to drop what comes in on rank 1's connections; no root is needed.

On plain torchrun: silence after step 5 on both ranks, each in the same all-reduce.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: network_stall
  guilty_ranks: [0, 1]
  action: retry
  code: "dist.all_reduce(gradient, group=self.group)"
"""

import contextlib
import ctypes
import os
import socket
import struct
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

SO_ATTACH_FILTER = 26
DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0 bytes


def unplug() -> None:
    """Nothing that peers send on this process's TCP connections reaches it from here on."""
    program = struct.pack("HL", 1, ctypes.addressof(DROP_ALL))
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getpeername():
                copy.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


class HostAverager:
    """Averages gradients over TCP, whatever the model runs on."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo")

    def average(self, model: nn.Module) -> None:
        gradient = torch.cat([p.grad.flatten().cpu() for p in model.parameters()])
        dist.all_reduce(gradient, group=self.group)
        parts = (gradient / dist.get_world_size()).split([p.numel() for p in model.parameters()])
        for p, part in zip(model.parameters(), parts, strict=True):
            p.grad.copy_(part.view_as(p))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    averager = HostAverager()
    for step in range(40):
        x = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        if step == 6 and rank == 1:
            unplug()
        averager.average(model)
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
