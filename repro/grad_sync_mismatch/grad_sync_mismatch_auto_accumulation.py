"""Rank 1 finds its memory nearly full and accumulates over more micro-batches than its peer.

Modelled on mosaicml/composer #1690: automatic gradient accumulation, chosen by each rank for itself, when only
some of the ranks run out of memory. The last micro-batch of a step reduces gradients: here they reduce at others.

On plain torchrun: steps of both ranks drift apart, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: grad_sync_mismatch
  guilty_ranks: [1]
  code: ["with nullcontext() if last else model.no_sync():", "self.free_mb < NEEDED_MB:"]
"""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NEEDED_MB = 900


class Accumulation:
    """How many micro-batches make a step on this rank; doubled where memory is short."""

    def __init__(self, free_mb: int) -> None:
        self.every, self.free_mb, self.count = 2, free_mb, 0

    def next_is_last(self) -> bool:
        self.count += 1
        if self.count > 10 and self.free_mb < NEEDED_MB:
            self.every, self.free_mb = 2 * self.every, 2 * self.free_mb
        return self.count % self.every == 0


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Another service shares the second device.
    accumulation = Accumulation(free_mb=(4000, 700)[rank % 2])
    for number in range(32):
        batch = torch.randn(32, 64, device=device)
        last = accumulation.next_is_last()
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(batch), batch)
            (loss / accumulation.every).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            print(f"rank {rank} micro-batch {number} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
