"""Four rows of validation data for four ranks, two a rank: ranks 2 and 3 get none and return, the others wait for them in a barrier.

The share of a rank is cut by a fixed size that suits two ranks. Whoever has no rows takes the early return, without an error.

On plain torchrun: rank 0 names rank 2 alone ("Rank 2 failed to pass monitoredBarrier"), rank 1 names rank 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: crashed
  class: rank_exited_early
  guilty_ranks: [2, 3]
  code: ["return", "dist.destroy_process_group()"]
"""

from datetime import timedelta

import torch
import torch.distributed as dist

ROWS, PER_RANK = 4, 2


def validate(model: torch.nn.Module, rows: torch.Tensor) -> None:
    rank = dist.get_rank()
    share = rows[rank * PER_RANK : (rank + 1) * PER_RANK]
    if len(share) == 0:
        return
    with torch.no_grad():
        loss = model(share).square().mean()
    dist.monitored_barrier(timeout=timedelta(seconds=6))
    print(f"rank {rank}: loss {loss:.3f}")


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    validate(torch.nn.Linear(8, 1), torch.randn(ROWS, 8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
