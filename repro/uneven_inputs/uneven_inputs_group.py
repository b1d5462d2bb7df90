"""Ranks 1 and 2 train in a group of their own; rank 2's shard is shorter, and it leaves. Rank 0 was done long before.

Ranks of other roles (a tokenizer, an evaluator) may end when they like: only members of the group that the waiting rank
reduces in are compared with it. Modelled on disaggregated RL jobs, whose rollout ranks end before the trainers do.

On plain torchrun: "Connection closed by peer" on rank 1, which torchrun names as the root cause.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [crashed, hung (suspected)]
  class: uneven_inputs
  guilty_ranks: [2]
  code: "for batch in range(BATCHES[rank]):"
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCHES = {1: 60, 2: 40}


def train(rank: int, trainers: dist.ProcessGroup, device: torch.device) -> None:
    torch.manual_seed(rank)
    model = DDP(
        nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(device), process_group=trainers
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in range(BATCHES[rank]):
        loss = model(torch.randn(32, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} batch {batch} loss {loss.item():.4f}", flush=True)
        time.sleep(0.05)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    trainers = dist.new_group([1, 2])
    if rank:
        train(rank, trainers, device)
    else:
        print("tokenized", flush=True)


if __name__ == "__main__":
    main()
