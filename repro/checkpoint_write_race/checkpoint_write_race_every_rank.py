"""Every rank writes the checkpoint, not only rank 0, and all of them write the same file at the same time.

Modelled on Lightning-AI/pytorch-lightning #14802 and forum questions about `torch.save` under DDP: the `if rank == 0`
around the save is missing. The file is opened, cut to nothing and written by each rank while the others write it.

On plain torchrun: nothing at all; now and then a later run cannot read the checkpoint.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: checkpoint_write_race
  guilty_ranks: [0, 1]
  code: "torch.save(state, FOLDER /"
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FOLDER = Path(tempfile.gettempdir(), "checkpoints", os.environ.get("MASTER_PORT", "0"))


def save(model: DDP, optimizer: torch.optim.Optimizer, step: int) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, FOLDER / "last.pt")


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, 13):
        batch = torch.randn(32, 512, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step % 3 == 0:
            save(model, optimizer, step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
