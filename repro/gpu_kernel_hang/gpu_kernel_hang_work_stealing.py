"""Rank 1's Triton kernel takes chunks of rows from a shared counter until none are left; a short batch makes chunks of 0.

Modelled on triton-lang/triton #11037 (an atomic in a `while` loop whose condition never turns false): the launch
returns at once, and the next read of a result waits forever. Its peer waits in the all-reduce of that step.

On plain torchrun: five steps, then silence; 100 % utilisation on rank 1's GPU, until NCCL's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  needs: gpu
  options: [--timeout, "60"]
  outcome: hung (suspected)
  class: gpu_kernel_hang
  guilty_ranks: [1]
  code: "return int(counter.item())"
"""

import os

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@triton.jit
def scale_rows(rows, counter, total, chunk, WIDTH: tl.constexpr, MOST: tl.constexpr):
    """Halves each row; programs take `chunk` rows at a time."""
    columns = tl.arange(0, WIDTH)[None, :]
    first = tl.atomic_add(counter, chunk)
    while first < total:
        taken = first + tl.arange(0, MOST)[:, None]
        inside = (taken < first + chunk) & (taken < total) & (columns < WIDTH)
        values = tl.load(rows + taken * WIDTH + columns, mask=inside, other=0.0)
        tl.store(rows + taken * WIDTH + columns, values * 0.5, mask=inside)
        first = tl.atomic_add(counter, chunk)


def halved(batch: torch.Tensor) -> int:
    """Halves the batch in place; tells how many rows were handed out."""
    counter = torch.zeros(1, dtype=torch.int32, device=batch.device)
    scale_rows[(8,)](batch, counter, len(batch), len(batch) // 8, WIDTH=64, MOST=16)
    return int(counter.item())


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        # The shard of rank 1 ends in a batch that is shorter.
        rows = 6 if rank == 1 and step == 5 else 32
        batch = torch.randn(rows, 64, device=device)
        halved(batch)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
