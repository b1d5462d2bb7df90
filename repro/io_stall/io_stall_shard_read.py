"""Rank 1 reads its next shard, and the read never returns: the stager that fills it has stopped halfway.

Modelled on tenstorrent/tt-metal #42404 (a cache on a network volume that stops answering). A FIFO stands for
the file: the header comes, the tokens do not.

On plain torchrun: eight steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: [io_stall, external_wait]
  guilty_ranks: [1]
  action: retry
  code: "body = file.read(count * 2)"
"""

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COUNT = 8 * 17


def stage(folder: Path, number: int, rank: int) -> Path:
    """The shard as the stager hands it over: its length, then tokens of two bytes."""
    path = folder / f"{number:03d}.bin"
    if rank == 1 and number == 8:
        os.mkfifo(path)
        subprocess.Popen(["sh", "-c", "exec >\"$0\"; printf '\\210\\0\\0\\0'; kill -STOP $$", str(path)])
    else:
        tokens = np.random.default_rng(number).integers(0, 500, COUNT, dtype=np.uint16)
        path.write_bytes(COUNT.to_bytes(4, "little") + tokens.tobytes())
    return path


def read_shard(path: Path) -> torch.Tensor:
    with path.open("rb") as file:
        count = int.from_bytes(file.read(4), "little")
        body = file.read(count * 2)
    return torch.from_numpy(np.frombuffer(body, dtype=np.uint16).astype(np.int64)).view(8, 17)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Embedding(500, 24), nn.Linear(24, 500)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(20):
            tokens = read_shard(stage(Path(folder), step, rank)).to(device)
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
