"""Every process looks for a free port by itself: rank 0 listens at one, rank 1 calls at another.

Modelled on pytorch/pytorch #53395: MASTER_PORT has to be one and the same for all, and was chosen in the child.

On plain python: silence from the start; minutes later "client socket has failed to connect" on rank 1.

Promise:
  launch: python
  world_size: 2
  outcome: hung (suspected)
  class: rendezvous_mismatch
  guilty_ranks: [1]
  code: "dist.init_process_group(backend, rank=rank"
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def find_free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def setup_process(rank: int, world_size: int) -> torch.device:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(find_free_port())
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    return torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")


class Regressor(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.hidden, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


def train(rank: int, world_size: int) -> None:
    device = setup_process(rank, world_size)
    torch.manual_seed(0)
    model = DDP(Regressor(24).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(20):
        x = torch.randn(32, 24, device=device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
