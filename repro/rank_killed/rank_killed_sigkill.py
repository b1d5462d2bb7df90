"""Rank 1 outgrows its memory allowance and is killed with SIGKILL: no traceback, no last words.

Modelled on hpcaitech/ColossalAI #3514 and horovod/horovod #2907: "exitcode: -9" for one rank and a
connection error for the rest. A guard thread stands in for the kernel's or the cluster's: it ends the
process whose resident memory exceeds the limit. Rank 1 gets the long documents and keeps their states.

On plain torchrun: rank 0's "Connection closed by peer", "Signal 9 (SIGKILL) received by PID"; 5 s.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: rank_killed
  guilty_ranks: [1]
  action: stop
"""

import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ALLOWANCE_MIB = 220


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def guard_memory(limit_mib: float) -> None:
    while resident_mib() < limit_mib:
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    document_tokens = (64, 65536)[rank % 2]
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    states = []
    for step in range(60):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f} {resident_mib():.0f} MiB", flush=True)
        if step == 0:  # torch and the optimizer are loaded: what comes on top is the documents'
            limit_mib = resident_mib() + ALLOWANCE_MIB
            threading.Thread(target=guard_memory, args=(limit_mib,), daemon=True).start()
        states.append(torch.ones(document_tokens, 256))
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
