"""Rank 0 streams its checkpoint into a staging file whose reader has stopped reading; rank 1 waits in a barrier.

Modelled on NVIDIA-NeMo/RL #3504 (a write to NFS that never returned, 35 hours of silence after "saving") and
tenstorrent/tt-metal #42404. The staging file is a FIFO, as stage-out tools give one; its reader was suspended.

On plain torchrun: "saving", then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: io_stall
  guilty_ranks: [0]
  action: retry
  code: "torch.save(state, staging)"
"""

import os
import subprocess
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def open_staging(folder: Path) -> Path:
    """A FIFO that a copy process drains to the object store; one read, and no more."""
    staging = folder / "step.pt"
    os.mkfifo(staging)
    drain = 'exec 3<"$0"; head -c 4096 <&3 >/dev/null; kill -STOP $$'
    subprocess.Popen(["sh", "-c", drain, str(staging)])
    return staging


def save(model: nn.Module, optimizer: torch.optim.Optimizer, staging: Path) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, staging)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(20):
            batch = torch.randn(16, 128, device=device)
            loss = nn.functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
            if step == 9:
                if rank == 0:
                    print("saving", flush=True)
                    save(model.module, optimizer, open_staging(Path(folder)))
                dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
