"""Rank 0 writes its parameters into a journal after each step, and its peers wait for it; no epoch is given to the sampler.

Modelled on trainers that checkpoint in every step on one rank. The sampler's fixed order is a fault of its own, that
nobody who asks why the job is slow wants to be told first.

On plain torchrun: training, at a tenth of its speed.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: slow
  class: straggler_rank
  guilty_ranks: [0]
  code: ["while time.monotonic() < until", "journal.flush()", "os.fsync(journal.fileno())", "time.sleep(0.002)"]
"""

import os
import tempfile
import time
from typing import IO

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WRITE_S = 0.09  # of a journal on a slow disk


def write(journal: IO[bytes], model: nn.Module) -> None:
    until = time.monotonic() + WRITE_S
    for parameter in model.parameters():
        journal.write(parameter.detach().cpu().numpy().tobytes())
    while time.monotonic() < until:
        journal.flush()
        os.fsync(journal.fileno())
        time.sleep(0.002)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(320, 24), torch.randn(320, 1))
    model = DDP(nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = DataLoader(rows, 8, sampler=DistributedSampler(rows))
    with tempfile.TemporaryFile() as journal:
        for _epoch in range(4):
            for inputs, targets in batches:
                loss = (model(inputs.to(device)) - targets.to(device)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if rank == 0:
                    write(journal, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
