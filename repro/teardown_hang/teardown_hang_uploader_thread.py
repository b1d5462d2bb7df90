"""All work is done and the group destroyed, but rank 0's uploader thread still waits for records, and is joined.

Modelled on facebookresearch/fairseq #4619 and wandb/wandb #3223: the tracker is never told that the run is over.
Python waits forevery thread that is no daemon before it ends; torchrun waits for Python.

On plain torchrun: "done" on both ranks, and a job that never ends.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: teardown_hang
  guilty_ranks: [0]
  code: "record = self.records.get()"
"""

import os
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Tracker:
    """Sends metrics from a thread of its own."""

    def __init__(self) -> None:
        self.records: queue.Queue = queue.Queue()
        self.sent: list[dict] = []
        threading.Thread(target=self.upload, name="uploader").start()

    def upload(self) -> None:
        while True:
            record = self.records.get()
            if record is None:
                return
            self.sent.append(record)

    def log(self, record: dict) -> None:
        self.records.put(record)

    def finish(self) -> None:
        self.records.put(None)


def train(rank: int, device: torch.device) -> None:
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracker = Tracker() if rank == 0 else None
    for step in range(12):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if tracker:
            tracker.log({"step": step, "loss": loss.item()})


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    train(rank, device)
    dist.barrier()
    # The model is gone by now: a group that goes before it makes gloo abort at exit, now and then.
    dist.destroy_process_group()
    print(f"rank {rank} done", flush=True)


if __name__ == "__main__":
    main()
