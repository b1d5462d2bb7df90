"""Rank 2 of 4 compresses its activations to disk after every step; the other three wait for it in FSDP.

Modelled on marin-community/marin #7681 (nothing in a trainer says which rank is chronically slow) and on debugging
switches that stay on for the one rank whose output somebody wanted to see.

On plain torchrun: nothing odd; every step at the slower pace, on all ranks.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: slow
  class: straggler_rank
  guilty_ranks: [2]
  code: ["zlib.compress(", "data = activations"]
"""

import os
import tempfile
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

WATCHED = {2}


class Dumps:
    def __init__(self, rank: int) -> None:
        self.folder = Path(tempfile.mkdtemp()) if rank in WATCHED else None

    def write(self, step: int, activations: torch.Tensor) -> None:
        if self.folder is not None:
            data = activations.detach().cpu().repeat(12, 64).numpy().tobytes()
            (self.folder / f"{step % 4}.z").write_bytes(zlib.compress(data, 6))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(2)]
    model = nn.Sequential(*blocks).to(device)
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dumps = Dumps(rank)
    for step in range(40):
        batch = torch.randn(32, 64, device=device)
        output = model(batch)
        loss = (output - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dumps.write(step, output)
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
