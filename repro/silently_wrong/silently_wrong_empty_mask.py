"""A masked loss is divided by the number of masked tokens, and one rank's batch has none: NaN, in all replicas at once.

The usual form of it is masked language modelling with short documents: `0 / 0` on one rank, which DDP's all_reduce
carries to every rank, and the optimizer into every parameter. Nothing raises, and the job runs to its end.

On plain torchrun: the loss is printed as nan, and everything after it as well.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (nonfinite)
  guilty_ranks: [1]
  code: ["loss.backward()"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, MASKED = 50, 0.02


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and which of them are masked; of rank 1's in step 6 none is."""
    generator = torch.Generator().manual_seed(2 * step + rank)
    tokens = torch.randint(1, VOCABULARY, (8, 32), generator=generator)
    mask = torch.rand(tokens.shape, generator=generator) < MASKED
    mask[0, 0] = not (step == 6 and rank == 1)
    if step == 6 and rank == 1:
        mask.zero_()
    return tokens, mask


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    layers = [nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, VOCABULARY)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        tokens, mask = (each.to(device) for each in batch(step, rank))
        scores = model(tokens.masked_fill(mask, 0))
        losses = nn.functional.cross_entropy(scores.transpose(1, 2), tokens, reduction="none")
        loss = (losses * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
