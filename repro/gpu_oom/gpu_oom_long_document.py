"""One document on rank 1 is far longer than the rest, and attention without a kernel needs its square.

Modelled on HannesStark/FlowSite #1 and k2-fsa/icefall #8: batches of bucketed lengths, one of which does not fit, on
one rank. Its peers wait in backward, and name a timeout.

On plain torchrun: "CUDA out of memory" on rank 1; rank 0 is ended by the launcher, or by NCCL's watchdog.

Promise:
  needs: gpu
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: [gpu_oom, rank_exception]
  guilty_ranks: [1]
  code: "scores = "
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Attention(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = torch.softmax(q @ k.transpose(-1, -2) / 8.0, dim=-1)
        return self.out(scores @ v)


def length_of(rank: int, step: int) -> int:
    return 60_000 if rank == 1 and step == 8 else 256 + 64 * (step % 4)


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.cuda.set_per_process_memory_fraction(0.02)  # the GPU is shared
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(Attention(), nn.GELU(), Attention()).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        batch = torch.randn(1, length_of(rank, step), 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
