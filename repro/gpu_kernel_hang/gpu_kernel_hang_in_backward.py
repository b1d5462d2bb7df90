"""Rank 1's backward launches a kernel that spins on a flag which a skipped batch has cleared.

Modelled on custom autograd functions with a persistent kernel. The host goes on: it has issued the all-reduce of the
gradients, as its peer has, but the device has not come to it, since it is still at the kernel before.

On plain torchrun: four steps, then silence; 100 % utilisation on both GPUs, until NCCL's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  needs: gpu
  options: [--timeout, "60"]
  outcome: hung (suspected)
  class: gpu_kernel_hang
  guilty_ranks: [1]
  code: "loss.item()"
"""

import os

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@triton.jit
def count_until_raised(flag, out):
    """Rounds until the flag is not zero."""
    rounds = 0
    while tl.atomic_add(flag, 0) == 0:
        rounds += 1
    tl.store(out, rounds)


class Gate(torch.autograd.Function):
    """The identity, whose gradient waits for the flag."""

    @staticmethod
    def forward(ctx, x, flag):
        ctx.flag = flag
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        rounds = torch.zeros(1, dtype=torch.int32, device=gradient.device)
        count_until_raised[(1,)](ctx.flag, rounds)
        return gradient + 0 * rounds, None


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    flag = torch.ones(1, dtype=torch.int32, device=device)
    for step in range(10):
        if rank == 1 and step == 4:
            flag.zero_()
        output = Gate.apply(model(torch.randn(32, 256, device=device)), flag)
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
