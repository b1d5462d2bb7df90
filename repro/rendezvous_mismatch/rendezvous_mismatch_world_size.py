"""The config says four processes and the machine has two to start: the two wait for the others.

Modelled on pytorch/pytorch #52848 and helboukkouri/character-bert-pretraining #4: the world size is right for
another machine, and `init_process_group` waits for the whole world to show up.

On plain python: silence from the start; half an hour later the store's "timed out" or gloo's.

Promise:
  launch: python
  world_size: 4
  outcome: hung (suspected)
  class: rendezvous_mismatch
  guilty_ranks: [2, 3]
  code: "dist.init_process_group("
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CONFIG = {"trainer": {"gpus": 4, "steps": 10, "lr": 0.01}, "model": {"width": 32, "classes": 5}}


def setup(rank: int, world_size: int) -> torch.device:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    if backend == "nccl":
        torch.cuda.set_device(rank)
        return torch.device("cuda", rank)
    return torch.device("cpu")


def train(rank: int, config: dict[str, dict]) -> None:
    device = setup(rank, config["trainer"]["gpus"])
    width, classes = config["model"]["width"], config["model"]["classes"]
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, classes)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["trainer"]["lr"])
    for step in range(config["trainer"]["steps"]):
        x = torch.randn(16, width, device=device)
        labels = torch.randint(classes, (16,), device=device)
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29571")
    available = torch.cuda.device_count() if torch.cuda.is_available() else 2
    mp.spawn(train, args=(CONFIG,), nprocs=min(available, 2))


if __name__ == "__main__":
    main()
