"""One call into C computes for 12 s and holds the GIL: no Python thread of that rank runs meanwhile.

Modelled on NVIDIA/TransformerEngine #868 (extensions that keep the interpreter lock): log lines, heartbeats
and every watchdog in Python fall silent, exactly as in a deadlock over that lock. The CPU tells them apart.

On plain torchrun: ten steps, 12 s of silence, ten more steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CALL_S = float(os.environ.get("CALL_S", "12"))


def digits_for(seconds: float) -> int:
    """How long a number `str` takes so many seconds for; its cost is the square of the length."""
    digits, started = 20_000, time.perf_counter()
    str(1 << int(digits * 3.32))
    return int(digits * (seconds / (time.perf_counter() - started)) ** 0.5)


def audit() -> int:
    """A figure in full, in one call."""
    import sys

    sys.set_int_max_str_digits(0)
    return len(str(1 << int(digits_for(CALL_S) * 3.32)))


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
        if step == 9 and rank == 1:
            print(f"audited {audit()} digits", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
