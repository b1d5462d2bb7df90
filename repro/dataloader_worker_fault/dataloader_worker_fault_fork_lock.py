"""Rank 1's loader forks its worker while a thread holds the decoder's lock; the worker's copy stays locked.

Modelled on pytorch/pytorch #1355 and #75147: a library with threads and a lock, forked at the wrong moment. In the
child there is no such thread, and its first decode waits forever; the loader polls for a batch that never comes.

On plain torchrun: rank 0 waits in its first backward, no error, until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: dataloader_worker_fault
  guilty_ranks: [1]
  code: ["with LOCK:  # one decode at a time", "for step, batch in enumerate(loader):"]
"""

import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

LOCK = threading.Lock()


def decode(index: int) -> torch.Tensor:
    with LOCK:  # one decode at a time
        return torch.full((32,), float(index)).sin()


class Images(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(index)


def warm_up_cache(begun: threading.Event) -> None:
    with LOCK:
        begun.set()
        time.sleep(1.0)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if rank == 1:
        begun = threading.Event()
        threading.Thread(target=warm_up_cache, args=(begun,), daemon=True).start()
        begun.wait()
    loader = DataLoader(Images(), batch_size=8, num_workers=1, multiprocessing_context="fork")
    for step, batch in enumerate(loader):
        loss = nn.functional.mse_loss(model(batch.to(device)), batch.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
