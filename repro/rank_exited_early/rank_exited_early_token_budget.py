"""Rank 1 has used up its tokens, and leaves by `sys.exit(0)` from the loop over batches, of which it has as many as its peer.

Modelled on trainers that end a rank by its own count: the loop was not run out, and its data is not what differs.

On plain torchrun: rank 0 fails with "Connection closed by peer" in its next backward; rank 1 ended with code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [crashed, hung (proven)]
  class: rank_exited_early
  guilty_ranks: [1]
  code: "sys.exit(0)"
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BUDGET = 3_000


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(1024, 24), torch.randint(40, 80, (1024,)))
    sampler = DistributedSampler(rows)
    model = DDP(nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = 0
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, lengths in DataLoader(rows, 8, sampler=sampler):
            if seen > BUDGET * (10 if rank == 0 else 1):
                print(f"rank {rank}: {seen} tokens, the budget is used up", flush=True)
                sys.exit(0)
            loss = model(inputs.to(device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += int(lengths.sum())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
