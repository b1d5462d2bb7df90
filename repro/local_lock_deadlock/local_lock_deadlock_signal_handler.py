"""Rank 0 gets a preemption notice while it holds its meter's lock; the handler wants the same lock.

Modelled on rajfirke/provena #42 and patroni/patroni #3413: Python runs a signal's handler in the main thread,
between two of its instructions. Holder and waiter are one thread, so that nobody is left to release the lock.
The notice comes from the scheduler, here from a timer, and falls into the critical section every time.

On plain torchrun: seven steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: local_lock_deadlock
  guilty_ranks: [0]
  code: "with self.guard:  # the totals"
"""

import os
import signal
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Meter:
    """Running averages, read by the progress thread and written by the loop."""

    def __init__(self) -> None:
        self.guard, self.values = threading.Lock(), []

    def update(self, loss: float, notice: bool) -> None:
        with self.guard:
            self.values.append(loss)
            if notice:
                signal.raise_signal(signal.SIGUSR1)
            self.values = self.values[-100:]

    def flush(self, *_: object) -> None:
        with self.guard:  # the totals
            print(f"preempted, mean loss {sum(self.values) / len(self.values):.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))).to(device)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    meter = Meter()
    signal.signal(signal.SIGUSR1, meter.flush)
    for step in range(20):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
        meter.update(loss.item(), notice=step == 6 and dist.get_rank() == 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
