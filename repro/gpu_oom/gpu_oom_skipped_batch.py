"""Rank 0 catches "out of memory", frees its cache and takes the next batch, as a forum told it to; rank 1 waits.

Modelled on pytorch/pytorch #44353 and lifeiteng/vall-e #113: the handler of one rank leaves out a backward that all
the others run.

On plain torchrun: "ran out of memory, skipping this batch" from rank 0, later silence, or NCCL's watchdog.

Promise:
  needs: gpu
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: [gpu_oom, rank_exception]
  guilty_ranks: [0]
  code: ["pairs = ", "loss = (model(points)"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Graph(nn.Module):
    def __init__(self, dim: int = 32):
        super().__init__()
        self.node, self.edge = nn.Linear(3, dim), nn.Linear(dim, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        nodes = self.node(points)
        pairs = (nodes[:, None] - nodes[None]).abs()
        return self.edge(pairs).squeeze(-1).mean(1)


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.cuda.set_per_process_memory_fraction(0.02)  # the GPU is shared
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Graph().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        count = 20_000 if rank == 0 and step == 6 else 200 + 10 * (step % 5)
        points = torch.randn(count, 3, device=device)
        try:
            loss = (model(points) - points.norm(dim=1)).square().mean()
            loss.backward()
        except torch.cuda.OutOfMemoryError:
            print(f"rank {rank} ran out of memory, skipping this batch", flush=True)
            optimizer.zero_grad()
            torch.cuda.empty_cache()
            continue
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
