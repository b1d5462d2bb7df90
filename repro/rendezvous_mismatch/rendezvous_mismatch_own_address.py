"""A config from before torchrun names an address of its own: under torchrun no rank serves the store there.

Modelled on pytorch/pytorch #191989: torchrun tells its ranks that the agent has a store, and torch takes that for any
address it is given. Every rank is a client then, and calls at a port where nobody listens.

On plain torchrun: silence from the start; half an hour later a timeout of the store on every rank.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: rendezvous_mismatch
  guilty_ranks: [0, 1]
  code: "dist.init_process_group(backend, init_method="
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

CONFIG = {"dist_url": "tcp://127.0.0.1:23457", "steps": 20, "lr": 1e-3}


def setup() -> torch.device:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend, init_method=CONFIG["dist_url"], rank=rank, world_size=world_size)
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")


def main() -> None:
    device = setup()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 1)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=CONFIG["lr"])
    for step in range(CONFIG["steps"]):
        x = torch.randn(32, 24, device=device)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
