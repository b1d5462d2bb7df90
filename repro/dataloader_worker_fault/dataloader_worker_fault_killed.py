"""One of rank 1's loader workers is killed, as a container's memory limit does it; the loader raises in the loop.

Modelled on pytorch/pytorch #21554 and the many reports that end in "DataLoader worker is killed by signal: Killed".
Rank 0's error says only that its peer is gone.

On plain torchrun: a traceback through torch's own signal handler, at whatever line the loop happened to be.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: dataloader_worker_fault
  guilty_ranks: [1]
"""

import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Crops(IterableDataset):
    """Crops of large scans; the third scan of the second worker does not fit."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self):
        worker = get_worker_info().id
        for scan in range(12):
            if (self.rank, worker, scan) == (1, 1, 2):
                # The kernel's answer to one allocation too many.
                os.kill(os.getpid(), signal.SIGKILL)
            for crop in range(4):
                yield torch.full((32,), float(scan * 4 + crop)).cos()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, crops in enumerate(DataLoader(Crops(rank), batch_size=4, num_workers=2, prefetch_factor=2)):
        loss = nn.functional.mse_loss(model(crops.to(device)), crops.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
