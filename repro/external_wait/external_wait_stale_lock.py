"""Rank 1 polls for a lock file that a dead process left behind, twenty times a second; rank 0 waits for rank 1.

Modelled on huggingface/huggingface_hub #3944: the lock's holder was killed, and whoever comes next wakes,
looks, and sleeps again forever. It never blocks for long, its stack changes, it uses a little CPU.

On plain torchrun: ten steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: external_wait
  guilty_ranks: [1]
  code: "time.sleep(0.05)"
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SoftLock:
    """Held by whoever made the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def taken(self) -> bool:
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return True
        return False

    def __enter__(self) -> None:
        while self.taken():
            time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self.path.unlink()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    cache = Path(tempfile.mkdtemp()) / "tokens.lock"
    for step in range(20):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 9 and rank == 1:
            cache.touch()  # as a process that was killed in its critical section leaves it
            with SoftLock(cache):
                print("tokens cached", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
