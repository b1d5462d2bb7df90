"""After the last step rank 1 closes its pool of writers, one of which still waits for a page that never comes.

Modelled on wandb/wandb #5601 (`finish()` that does not return, now and then) and on every `join` at the end of a
script: the executor's shutdown waits for its threads. Rank 0 has ended long ago.

On plain torchrun: "trained" on both ranks, and a job that never ends.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: teardown_hang
  guilty_ranks: [1]
  code: ["writers.shutdown()", "self.ready.wait()"]
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Page:
    """Predictions of a few steps, written once they are complete."""

    def __init__(self) -> None:
        self.rows: list[float] = []
        self.ready = threading.Event()

    def add(self, row: float) -> None:
        self.rows.append(row)
        if len(self.rows) == 4:
            self.ready.set()

    def write(self) -> int:
        self.ready.wait()
        return len(self.rows)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    writers, page = ThreadPoolExecutor(2), Page()
    for step in range(12):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step % 4 == 0:
            page = Page()
            writers.submit(page.write)
        if rank == 0 or step != 9:
            page.add(loss.item())
    dist.destroy_process_group()
    print(f"rank {rank} trained", flush=True)
    writers.shutdown()


if __name__ == "__main__":
    main()
