"""Rank 0 alone saves a checkpoint, and inside the save it gathers from everyone: rank 1 never comes.

Modelled on deepspeedai/DeepSpeed #2993 and #797: `save_checkpoint` behind `if rank == 0`, while it
contains a collective that all ranks must enter. The others wait for the marker file that rank 0 would
write afterwards.

On plain torchrun: silence after step 3 on both ranks; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: ["dist.all_gather_object(positions, position)", "save_checkpoint(model.module", "if rank == 0:"]
"""

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def save_checkpoint(model: nn.Module, folder: Path, step: int, position: int) -> None:
    """Weights plus where each rank stands in its data, so that a resumed run repeats no sample."""
    positions = [None] * dist.get_world_size()
    dist.all_gather_object(positions, position)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "positions": positions}, folder / f"step{step}.pt")
    (folder / f"step{step}.done").touch()


def wait_for(marker: Path) -> None:
    while not marker.exists():
        time.sleep(0.2)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    folder = Path(tempfile.gettempdir(), "checkpoints", os.environ["MASTER_PORT"])
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 100):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step % 3 == 0:
            if rank == 0:
                save_checkpoint(model.module, folder, step, position=step * 32)
            else:
                wait_for(marker=folder / f"step{step}.done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
