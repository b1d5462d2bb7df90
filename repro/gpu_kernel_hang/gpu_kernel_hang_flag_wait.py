"""Rank 0's preprocessing kernel spins on a flag in memory that the host was to raise, and forgot on a cached batch.

Modelled on vllm-project/vllm #52247 (a kernel that never ends, the host forever in an event's synchronize) and
1bit-MONSTER/1bit-MONSTER #405 (a spin-wait in a kernel without a timeout).

On plain torchrun: three steps, then silence; 100 % utilisation on rank 0's GPU, until NCCL's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  needs: gpu
  options: [--timeout, "60"]
  outcome: hung (suspected)
  class: gpu_kernel_hang
  guilty_ranks: [0]
  code: "ready.synchronize()"
"""

import os

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@triton.jit
def fill_when_raised(out, flag, COUNT: tl.constexpr):
    """Ones, once the flag is not zero."""
    rounds = 0
    while tl.atomic_add(flag, 0) == 0:
        rounds += 1
    tl.store(out + tl.arange(0, COUNT), tl.full((COUNT,), 1.0, tl.float32))


class Staging:
    """Masks prepared on a stream beside the training's."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.flag = torch.ones(1, dtype=torch.int32, device=device)
        self.mask = torch.empty(64, device=device)

    def next_mask(self, cached: bool) -> torch.Tensor:
        ready = torch.cuda.Event()
        with torch.cuda.stream(self.stream):
            self.flag.fill_(0 if cached else 1)
            fill_when_raised[(1,)](self.mask, self.flag, COUNT=64)
            ready.record()
        ready.synchronize()
        return self.mask


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    staging = Staging(device)
    for step in range(20):
        batch = torch.randn(32, 64, device=device) * staging.next_mask(cached=rank == 0 and step == 3)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
