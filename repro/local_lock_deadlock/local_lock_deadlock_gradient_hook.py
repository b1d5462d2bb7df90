"""Rank 1's gradient hook waits for a permit that a closed profiler no longer hands out.

Modelled on hooks that throttle or log gradients through a queue (Lightning's and DeepSpeed's issues on hanging hooks). On
a GPU torch runs the backward in a thread of its own: the line of the main thread is `loss.backward()`, whatever hangs.

On plain torchrun: four steps, then silence until NCCL's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  needs: gpu
  outcome: hung (proven)
  class: local_lock_deadlock
  guilty_ranks: [1]
  code: "self.permits.get()"
"""

import os
import queue

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Throttle:
    """Lets as many gradients pass as there are permits."""

    def __init__(self, permits: int) -> None:
        self.permits: queue.Queue[int] = queue.Queue()
        for number in range(permits):
            self.permits.put(number)

    def __call__(self, parameter: torch.Tensor) -> None:
        self.permits.get()


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # The other ranks have a permit for every step.
    model.module[2].weight.register_post_accumulate_grad_hook(Throttle(4 if rank == 1 else 100))
    for step in range(10):
        loss = model(torch.randn(32, 256, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
