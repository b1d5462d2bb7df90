"""Two tasks of a thread pool sum up a metric each, over the same group: which comes first is each rank's own affair.

As in asynchronous metric and checkpoint hooks that share the default group; at step 14 rank 1 is late with the first
of the two. The calls are the same on all ranks, from the same line, in another order.

On plain torchrun: gloo aborts rank 0, which received 1000 numbers for its 4.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: collective_order_mismatch
  guilty_ranks: [1]
  code: "dist.all_reduce(total)"
"""

import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def summed(values: torch.Tensor, ready_after_s: float) -> torch.Tensor:
    time.sleep(ready_after_s)
    total = values.clone()
    dist.all_reduce(total)
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pool = ThreadPoolExecutor(2)
    for step in range(30):
        optimizer.zero_grad()
        out = model(torch.randn(4, 16))
        out.square().mean().backward()
        optimizer.step()
        if step % 5 == 4:
            loss = pool.submit(summed, out.detach()[:, 0], 0.5 if rank == 1 and step == 14 else 0.0)
            histogram = pool.submit(summed, torch.histc(out.detach(), 1000), 0.2)
            print(rank, step, loss.result().sum().item(), histogram.result().sum().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
