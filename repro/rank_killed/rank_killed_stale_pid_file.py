"""Rank 0 clears away "what the last run left" and ends rank 1, which wrote the pid file a moment ago.

Modelled on pytorch/pytorch #8976 (a training process "killed by signal: Killed" with memory to spare, and nobody
who admits to it): clean-up code that trusts a file with a pid, shared by ranks that were meant to have one each.

On plain torchrun: exitcode -9 for rank 1, rank 0's "Connection closed by peer"; dmesg is silent.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_killed
  guilty_ranks: [1]
  code: "os.kill(pid, signal.SIGKILL)"
"""

import contextlib
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RUN = os.environ.get("TORCHELASTIC_RUN_ID", "run")
PID_FILE = Path(tempfile.gettempdir()) / f"exporter-{RUN}-{os.environ.get('MASTER_PORT', '0')}.pid"


def serve_metrics() -> None:
    """Only one may listen on the port."""
    PID_FILE.write_text(str(os.getpid()))


def restart_metrics() -> None:
    """Whoever still listens is from the last run."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pid = int(PID_FILE.read_text())
        PID_FILE.unlink()
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(80):
        if rank == 1 and step == 0:
            serve_metrics()
        if rank == 0 and step == 12:
            restart_metrics()
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
