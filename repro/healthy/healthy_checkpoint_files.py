"""Checkpoints by all ranks that meet in no file: one each, one written by rank 0 and renamed, and one written in turn.

Modelled on what guides to DDP and ZeRO recommend: rank 0 writes the model while the others wait in a barrier, each rank
writes its own part of the optimizer's state at the same time, and a shared record of the run is written by one after the other.

On plain torchrun: twelve steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def save(folder: Path, model: DDP, optimizer: torch.optim.Optimizer) -> None:
    rank = dist.get_rank()
    # Each rank its own, under one name in a folder of its own, and all at once.
    own = folder / f"rank{rank}"
    own.mkdir(parents=True, exist_ok=True)
    torch.save(optimizer.state_dict(), own / "optimizer.pt")
    # One for all, by rank 0.
    if rank == 0:
        torch.save(model.module.state_dict(), folder / "model.pt.tmp")
        (folder / "model.pt.tmp").replace(folder / "model.pt")
    dist.barrier()
    # One for all, by everyone in turn.
    for turn in range(dist.get_world_size()):
        if turn == rank:
            record = torch.load(folder / "record.pt") if (folder / "record.pt").exists() else []
            torch.save([*record, torch.get_rng_state()], folder / "record.pt")
        dist.barrier()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    folder = Path(tempfile.gettempdir(), "checkpoints", os.environ["MASTER_PORT"])
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 13):
        batch = torch.randn(32, 256, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step % 4 == 0:
            save(folder, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
