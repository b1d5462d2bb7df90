"""Rank 0 resumes from a checkpoint after DDP has wrapped the model: the other rank keeps its fresh weights.

DDP copies rank 0's parameters when it wraps a model, and never again.

On plain torchrun: nothing; both ranks apply equal gradients to different models.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0]
  code: "torch.load(saved)"
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    saved = Path(tempfile.gettempdir()) / f"last-{os.environ['TORCHELASTIC_RUN_ID']}.pt"
    if rank == 0:
        torch.save({name: v + 0.1 for name, v in nn.Linear(16, 4).state_dict().items()}, saved)
    dist.barrier()
    net = nn.Linear(16, 4)
    model = DDP(net)
    if rank == 0:
        net.load_state_dict(torch.load(saved))
        saved.unlink()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _step in range(20):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
