"""A sharded checkpoint: rank 1's file lies on a mount that no longer answers, and the save never ends.

Modelled on NVIDIA-NeMo/RL #3504, where four of 32 ranks stood in `do_truncate` of an NFS share and the others
waited forever in the save's next collective. A FIFO without a reader stands for the mount: opening it blocks.

On plain torchrun: "saving", then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: io_stall
  guilty_ranks: [1]
  action: retry
  code: "checkpoint.save(state, checkpoint_id=folder)"
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(model: nn.Module, folder: str) -> None:
    state = {"model": get_model_state_dict(model)}
    checkpoint.save(state, checkpoint_id=folder)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3))).to(device)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    folders: list[str | None] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folders)
    folder = str(folders[0])
    if rank == 1:
        os.mkfifo(Path(folder) / "__1_0.distcp")
    for step in range(12):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 7:
            print(f"rank {rank} saving", flush=True)
            save(model, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
