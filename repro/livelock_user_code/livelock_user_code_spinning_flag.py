"""Rank 1 asks a flag in a loop without a pause: a whole CPU, the same two lines forever.

Modelled on ray-project/ray #29562, whose test of NCCL's timeouts has a rank that does `while True: pass`. No event
and no collective says that anything is done; nothing that the loop can see changes from one look to the next.

On plain torchrun: ten steps, then silence at full CPU until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: livelock_user_code
  guilty_ranks: [1]
  code: ["while not flag.is_set():", "wait_for(resumed)"]
"""

import os
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def wait_for(flag: threading.Event) -> None:
    while not flag.is_set():
        pass


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    resumed = threading.Event()
    for step in range(20):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
        if step == 9 and rank == 1:
            wait_for(resumed)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
