"""Rank 0 writes a checkpoint to storage that takes a few kilobytes at a time; rank 1 waits in a barrier.

Modelled on NVIDIA-NeMo/Automodel #1038, where a barrier ran out while rank 0 wrote to shared storage: the
writer sleeps in the kernel, uses no CPU, and gets rid of its bytes in small pieces. Here an uploader drains a pipe.

On plain torchrun: ten steps, 20 s of silence, ten more steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import io
import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

UPLOAD_S = float(os.environ.get("UPLOAD_S", "20"))
UPLOADER = """
import os, sys, time
pause = float(sys.argv[1])
while os.read(0, 16384):
    time.sleep(pause)
"""
PIECE = 16384


def upload(state: dict[str, torch.Tensor]) -> int:
    """Sends the state through a pipe, as a command-line client of a store would have it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    size = len(buffer.getvalue())
    pause = UPLOAD_S / (size / PIECE)
    client = subprocess.Popen([sys.executable, "-c", UPLOADER, str(pause)], stdin=subprocess.PIPE, bufsize=0)
    view = memoryview(buffer.getvalue())
    while view:
        view = view[client.stdin.write(view[:PIECE]) :]
    client.stdin.close()
    client.wait()
    return size


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 9:
            if rank == 0:
                print(f"saved {upload(model.module.state_dict())} bytes", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
