"""On rank 2 the training thread and the cache's evictor take the same two locks in opposite order.

Modelled on pytorch/pytorch #2168 (one thread takes the first lock and wants the second, the other the reverse).
The evictor starts when the cache is full, which only rank 2's long documents bring about.

On plain torchrun: eight steps, then silence on all four ranks until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (proven)
  class: local_lock_deadlock
  guilty_ranks: [2]
  code: "with self.entries_lock:  # look it up"
"""

import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class FeatureCache:
    """Features of documents; an evictor keeps it small."""

    def __init__(self) -> None:
        self.entries_lock, self.statistics_lock = threading.Lock(), threading.Lock()
        self.entries: dict[int, torch.Tensor] = {}
        self.hits, self.evicting, self.counting = 0, threading.Event(), threading.Event()

    def evict(self) -> None:
        with self.entries_lock:
            self.evicting.set()
            self.counting.wait()
            with self.statistics_lock:
                self.hits = 0
            self.entries.clear()

    def get(self, key: int, rows: int) -> torch.Tensor:
        if sum(len(entry) for entry in self.entries.values()) > 1000:
            self.counting.clear()
            threading.Thread(target=self.evict, name="evictor", daemon=True).start()
            self.evicting.wait()
        with self.statistics_lock:
            self.hits += 1
            self.counting.set()
            with self.entries_lock:  # look it up
                return self.entries.setdefault(key, torch.randn(rows, 48))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 48)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    cache = FeatureCache()
    for step in range(30):
        features = cache.get(step, rows=128 if rank == 2 else 16).to(device)
        loss = nn.functional.l1_loss(model(features), features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
