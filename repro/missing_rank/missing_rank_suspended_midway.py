"""Rank 1 is suspended in the middle of its steps, where nothing can be asked of it any more: not even its flight recorder.

As `missing_rank_suspended`, but the batch system did not wait for a moment that the job offers. Rank 0 stands in DDP's
backward; that its reduction is under way only its own recorder says.

On plain torchrun: some steps, then silence until gloo's timeout, which blames the connection.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: missing_rank
  guilty_ranks: [1]
  action: retry
  code: "time.sleep(0.2)"
"""

import os
import subprocess
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH_SYSTEM = "sleep 4.1; kill -STOP {pid}"  # no CONT ever comes


def next_batch() -> torch.Tensor:
    time.sleep(0.2)  # the store's rate limit
    return torch.randn(16, 32)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(200):
        x = next_batch()
        loss = nn.functional.mse_loss(model(x), x.roll(1, dims=-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 6 and rank == 1:
            subprocess.Popen(["sh", "-c", BATCH_SYSTEM.format(pid=os.getpid())])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
