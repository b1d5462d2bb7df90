"""Rank 1 meets a length it has not seen and builds a new plan for it for 15 s; rank 0 waits in its backward.

Modelled on pytorch/pytorch #140229, where a compiled model in DDP is recompiled whenever the input's length
changes. Lengths differ between the ranks, so each compiles when it has to, and its peer sees a long backward.

On plain torchrun: eight steps, 15 s of silence, eight more; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import functools
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SEARCH_S = float(os.environ.get("SEARCH_S", "15"))


@functools.cache
def plan(length: int) -> int:
    """The tile that runs this length fastest; the usual ones ship with the package."""
    if length <= 64:
        return 16
    timings: dict[int, float] = {}
    until = time.monotonic() + SEARCH_S
    while time.monotonic() < until:
        for tile in (8, 16, 32, 64):
            x, start = torch.randn(4, length, tile), time.perf_counter()
            (x @ x.transpose(1, 2)).softmax(-1)
            timings[tile] = min(timings.get(tile, 1e9), time.perf_counter() - start)
    return min(timings, key=timings.__getitem__)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        pieces = [nn.functional.scaled_dot_product_attention(p, k, v) for p in q.split(plan(x.shape[1]), 1)]
        return x + self.out(torch.cat(pieces, 1))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(Attention(32), nn.LayerNorm(32), Attention(32)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(16):
        length = 96 if rank == 1 and step >= 8 else 64
        x = torch.randn(4, length, 32, device=device)
        loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
