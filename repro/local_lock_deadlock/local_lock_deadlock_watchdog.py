"""Rank 1 waits for a thread that has ended; a watchdog's timer is pending, which would only report it.

Whether a timer's function would wake the rank is nobody's to know before it is called: the hang is suspected, and not
proven. Modelled on jobs that guard each evaluation with a threading.Timer that dumps all stacks.

On plain torchrun: silence after step 8, and an hour later a line of the watchdog's; half an hour after the silence began
gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: local_lock_deadlock
  guilty_ranks: [1]
  code: "self.stored.wait()"
"""

import faulthandler
import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

REPORTED_AFTER_S = 3600.0


class Uploads:
    """Stores a sample from a thread of its own, and waits until that says so."""

    def __init__(self, rank: int) -> None:
        self.rank, self.stored = rank, threading.Event()

    def _store(self, step: int) -> None:
        if self.rank == 1 and step == 8:
            return  # a sample that is empty: nothing to store, and nobody is told
        self.stored.set()

    def upload(self, step: int) -> None:
        watchdog = threading.Timer(REPORTED_AFTER_S, faulthandler.dump_traceback)
        watchdog.daemon = True
        watchdog.start()
        self.stored.clear()
        threading.Thread(target=self._store, args=(step,)).start()
        self.stored.wait()
        watchdog.cancel()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    uploads = Uploads(rank)
    for step in range(100):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        uploads.upload(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
