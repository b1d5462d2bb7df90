"""Rank 0 stops its profiler, which waits in C for its thread and keeps the interpreter lock that the thread needs.

Modelled on pytorch/pytorch #56297: a destructor bound to Python joins a thread that wants the lock for its last
lines. A POSIX semaphore called by ctypes' PyDLL stands for the join.

On plain torchrun: ten steps, then silence until gloo's timeout; rank 1 is in the gather of its metrics.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: gil_held_native_call
  guilty_ranks: [0]
  code: "libc.sem_wait(self.finished)"
"""

import ctypes
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

libc = ctypes.PyDLL(None)


class Profiler:
    """Samples how much memory the process has, in a thread."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.over, self.finished = threading.Event(), ctypes.create_string_buffer(64)
        libc.sem_init(self.finished, 0, 0)
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while not self.over.wait(0.05):
            self.samples.append(int(Path("/proc/self/statm").read_text().split()[1]))
        self.samples.sort()
        libc.sem_post(self.finished)

    def stop(self) -> int:
        self.over.set()
        libc.sem_wait(self.finished)
        return self.samples[-1]


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Conv1d(4, 16, 3), nn.ReLU(), nn.Conv1d(16, 4, 3)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler = Profiler() if rank == 0 else None
    for step in range(10):
        batch = torch.randn(8, 4, 64, device=device)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    peak = profiler.stop() if profiler else 0
    gathered: list[int | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, peak)
    print(f"rank {rank} pages {gathered}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
