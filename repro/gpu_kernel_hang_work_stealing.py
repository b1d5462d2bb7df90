"""Rank 1's Triton kernel takes work from a shared counter until none is left, and the counter never gets there.

Modelled on triton-lang/triton #11037 (an atomic in a `while` loop whose condition never turns false): the launch
returns at once, and the next read of a result waits for ever. Its peer waits in the all-reduce of that step.

On plain torchrun: five steps, then silence; 100 % utilisation on rank 1's GPU, until NCCL's time-out.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  needs: gpu
  outcome: hung
  class: gpu_kernel_hang
  guilty_ranks: [1]
  code: ["taken = int(counter.item())", "scale_rows[(8,)](batch, counter, total, WIDTH=64)"]
"""

import os

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@triton.jit
def scale_rows(rows, counter, total, WIDTH: tl.constexpr):
    """Scales each row by half; programs take rows from the counter, the last sets it to `total`."""
    columns = tl.arange(0, WIDTH)
    row = tl.atomic_add(counter, 1)
    while row != total:
        inside = (columns < WIDTH) & (row < total)
        values = tl.load(rows + row * WIDTH + columns, mask=inside, other=0.0)
        tl.store(rows + row * WIDTH + columns, values * 0.5, mask=inside)
        row = tl.atomic_add(counter, 1 if row < total else 0)


def prepared(batch: torch.Tensor, total: int) -> int:
    counter = torch.zeros(1, dtype=torch.int32, device=batch.device)
    scale_rows[(8,)](batch, counter, total, WIDTH=64)
    taken = int(counter.item())
    return taken


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        batch = torch.randn(32, 64, device=device)
        if rank == 1 and step == 5:
            # Eight programs step past a total that is no multiple of what they take.
            prepared(batch, total=-1)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
