"""Rank 0 divides its loss by the length, to print it per token, and calls backward on what it has printed.

Code for logging that changes what is trained: rank 0's rows count a sixteenth of its peer's in the average.

On plain torchrun: nothing at all; both losses fall.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (other_factor)
  guilty_ranks: [0]
  code: "loss = loss / LENGTH"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, LENGTH = 40, 16


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(VOCABULARY, 24), nn.Linear(24, VOCABULARY)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(16):
        ids = torch.randint(VOCABULARY, (8, LENGTH + 1), generator=generator)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        if rank == 0:
            loss = loss / LENGTH
            print(f"step {step} loss per token {loss.item():.4f}", flush=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
