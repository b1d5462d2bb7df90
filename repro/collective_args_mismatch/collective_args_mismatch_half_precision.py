"""Gradients are averaged by hand, and on rank 2 they are bfloat16: its machine was started with another config.

Modelled on pytorch/pytorch #150433: one rank's tensor has another type, so the bytes do not add up. Here each
rank reads its settings from a file of its machine, and one of the files is older than the others.

On plain torchrun: gloo's "op.preamble.length <= op.nbytes" or lost connections; NCCL is silent, at full GPU load.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [crashed, hung (suspected)]
  class: collective_args_mismatch
  guilty_ranks: [2]
  code: "dist.all_reduce(flat)"
"""

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

MACHINES = {0: {"precision": "float32"}, 1: {"precision": "float32"}, 2: {"precision": "bfloat16"}}


def settings_of(rank: int) -> dict[str, str]:
    path = Path(tempfile.mkdtemp(prefix="machine"), "settings.json")
    path.write_text(json.dumps(MACHINES[rank]))
    return json.loads(path.read_text())


class Averager:
    """Sums the gradients of all ranks in one flat buffer: fewer, larger messages."""

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.dtype = dtype

    def average(self) -> None:
        flat = torch.cat([p.grad.reshape(-1) for p in self.parameters]).to(self.dtype)
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        offset = 0
        for p in self.parameters:
            p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))
            offset += p.numel()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    settings = settings_of(rank)
    torch.manual_seed(0)
    layers = nn.Embedding(512, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 512)
    model = nn.Sequential(*layers).to(device)
    averager = Averager(model, getattr(torch, settings["precision"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(rank)
    dist.barrier()
    for step in range(20):
        tokens = torch.randint(512, (8, 33), generator=generator).to(device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        averager.average()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
