"""Rank 1 raised, but nobody sees it: a `finally` enters a barrier first, and the job hangs in silence.

Modelled on pytorch/torchtitan #1342 and pytorch/pytorch #124961: clean-up code that waits for the other
ranks runs while an exception is on its way up. The traceback would be printed after the barrier, which
rank 0 never enters, because it waits for rank 1 in backward.

On plain torchrun: silence after step 3, no traceback; half an hour later gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: rank_exception
  guilty_ranks: [1]
  code: "return LABELS["
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LABELS = {"ham": 0, "spam": 1}


def rows(rank: int, world_size: int) -> list[dict[str, str]]:
    table = [{"label": "spam" if i % 3 else "ham"} for i in range(400)]
    table[55] = {"label": "Spam"}  # typed by hand
    return table[rank::world_size]


def encode(row: dict[str, str]) -> int:
    return LABELS[row["label"]]


def train(device: torch.device) -> None:
    rank = dist.get_rank()
    shard = rows(rank, dist.get_world_size())
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 2)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, first in enumerate(range(0, len(shard), 8)):
        labels = torch.tensor([encode(row) for row in shard[first : first + 8]], device=device)
        batch = torch.randn(len(labels), 64, device=device)
        loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        train(device)
    finally:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
