"""Rank 1's checkpoint writer dies in its thread; the training loop waits for it to take the next one.

Modelled on Lightning-AI/pytorch-lightning #6430 (one rank fails and its peers hide the first error) and on
asynchronous checkpointing as many write it: a thread, and a queue with room for one. The thread's traceback
is on rank 1's stderr, a page above the silence.

On plain torchrun: a traceback "Exception in thread writer", a few more steps, silence.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: [rank_exception, local_lock_deadlock]
  guilty_ranks: [1]
  code: ["int(path.stem.split(", "pending.put("]
"""

import os
import queue
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

KEEP = 2


def forget_old(folder: Path) -> None:
    """The oldest go first."""
    written = sorted(folder.glob("*.pt"), key=lambda path: int(path.stem.split("-")[1]))
    for path in written[:-KEEP]:
        path.unlink()


def write(pending: queue.Queue, folder: Path) -> None:
    while True:
        step, state = pending.get()
        torch.save(state, folder / f"step-{step}.pt")
        forget_old(folder)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    folder = Path(tempfile.mkdtemp())
    if rank == 1:
        (folder / "best.pt").touch()  # somebody's copy
    pending: queue.Queue = queue.Queue(maxsize=1)
    threading.Thread(target=write, args=(pending, folder), name="writer", daemon=True).start()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(60):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            pending.put((step, {k: v.cpu().clone() for k, v in model.module.state_dict().items()}))
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
