"""Rank 1's packer meets a document longer than a pack, which it puts back and takes out again forever.

Modelled on instructlab/training #51 (samples longer than a batch may be) and srama2512/PONI #18 (a loop without
an end on one rank, told by its peers' NCCL timeout). A whole CPU, the same few lines, nothing gets done.

On plain torchrun: five steps, then silence at full CPU until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: livelock_user_code
  guilty_ranks: [1]
  code: ["while used < self.size and self.waiting:", "length = self.waiting.popleft()", "if used + length <= self.size:", "used += length", "self.waiting.append(length)"]
"""

import os
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Packer:
    """Fills packs of `size` tokens with whole documents."""

    def __init__(self, lengths: list[int], size: int) -> None:
        self.waiting, self.size = deque(lengths), size

    def next_pack(self) -> list[int]:
        pack: list[int] = []
        used = 0
        while used < self.size and self.waiting:
            length = self.waiting.popleft()
            if used + length <= self.size:
                pack.append(length)
                used += length
            else:
                self.waiting.append(length)
        return pack


def document_lengths(rank: int) -> list[int]:
    lengths = [32] * 80
    if rank == 1:
        lengths = [32] * 40 + [300]
    return lengths


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Embedding(500, 24), nn.Linear(24, 500)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    packer = Packer(document_lengths(rank), size=256)
    for step in range(10):
        tokens = torch.randint(500, (sum(packer.next_pack()),), device=device)
        loss = nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
