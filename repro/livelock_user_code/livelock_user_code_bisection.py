"""Rank 3 looks for the largest micro-batch that fits by bisection, and its bounds stop one apart.

Modelled on Lightning-AI's and accelerate's batch-size finders, and on any bisection that forgets the `+ 1`:
`low` stays where it is, `high` too. Its peers' budgets come out even; they wait in the reduction of the result.

On plain torchrun: silence at full CPU before the first step, until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: hung (suspected)
  class: livelock_user_code
  guilty_ranks: [3]
  code: ["while low < high:", "middle = (low + high) // 2", "if cost(middle, width) <= budget:", "low = middle", "return 4 * rows * width"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def cost(rows: int, width: int) -> int:
    """Bytes that the activations of so many rows take."""
    return 4 * rows * width + 4 * width * width


def largest_batch(budget: int, width: int) -> int:
    low, high = 1, 64
    while low < high:
        middle = (low + high) // 2
        if cost(middle, width) <= budget:
            low = middle
        else:
            high = middle
        if cost(high, width) <= budget:
            return high
    return low


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    width = 64
    budgets = [cost(64, width), cost(64, width), cost(64, width), cost(50, width) + 8]
    rows = torch.tensor([largest_batch(budgets[rank], width)], device=device)
    dist.all_reduce(rows, op=dist.ReduceOp.MIN)
    model = DDP(nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10):
        batch = torch.randn(int(rows), width, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
