"""All ranks write one temporary file and rename it: whoever is first leaves nothing for the others to rename.

Modelled on huggingface/transformers #27925, where every rank renamed `tmp-checkpoint-10` on a shared file system. The
write to a temporary name is meant to protect the checkpoint, and its name is the same on all ranks.

On plain torchrun: FileNotFoundError from the renaming on one rank, connection errors or nothing on the others.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: crashed
  class: checkpoint_write_race
  guilty_ranks: [0, 1, 2]
  code: "torch.save(state, file)"
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


class Checkpoints:
    """Never leaves half a file under the checkpoint's own name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, state: dict[str, object], name: str) -> None:
        unfinished = self.folder / f"{name}.unfinished"
        with unfinished.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.folder / name)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    checkpoints = Checkpoints(Path(tempfile.gettempdir(), "checkpoints", os.environ["MASTER_PORT"]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.Tanh(), nn.Linear(2048, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    for step in range(1, 41):
        batch = torch.randn(16, 512, generator=data)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step % 4 == 0:
            checkpoints.write({"model": model.state_dict(), "step": step}, f"step{step}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
