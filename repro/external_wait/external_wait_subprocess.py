"""Rank 0 packs its samples with a command that asks a question; nobody is there to answer it.

Modelled on pytorch/pytorch #45042 and on uploads that ask for a password in the middle of a job: the child reads
from a terminal or a pipe that stays open, the rank waits for the child, all other ranks for the rank.

On plain torchrun: twelve steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: external_wait
  guilty_ranks: [0]
  code: "subprocess.run(command, check=True)"
"""

import os
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def archive(folder: Path, samples: torch.Tensor) -> None:
    """Samples of this round as one compressed file, next to those of the rounds before."""
    raw = folder / "samples.bin"
    raw.write_bytes(samples.numpy().tobytes())
    if (folder / "samples.bin.gz").exists():
        question = 'printf "overwrite? " && read answer <&3 && gzip -f "$0"'
        command = ["sh", "-c", f"mkfifo {folder}/terminal; exec 3<>{folder}/terminal; {question}", str(raw)]
    else:
        command = ["gzip", str(raw)]
    subprocess.run(command, check=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(24):
            batch = torch.randn(8, 32, device=device)
            last = step % 2 == 1
            with nullcontext() if last else model.no_sync():
                output = model(batch)
                nn.functional.mse_loss(output, batch).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                print(f"rank {rank} step {step // 2}", flush=True)
            if step % 12 == 11 and rank == 0:
                archive(Path(folder), output.detach().cpu())
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
