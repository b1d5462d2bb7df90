"""Rank 0 evaluates for 10 s while rank 1 waits in a barrier: quiet, and just as it was meant.

Modelled on charent/ChatLM-mini-Chinese #47 and many like it, where the wait for an evaluation on one
rank was taken for a communication fault (and, over the limit of half an hour, became one). The ranks
meet again in the barrier, and training goes on.

On plain torchrun: five steps, 10 s of silence, rank 0's evaluation line, five more steps, exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

EVAL_BUDGET_S = 10.0


@torch.no_grad()
def evaluate(model: nn.Module, device: torch.device) -> tuple[float, int]:
    """Mean loss over as many validation batches as the time budget allows."""
    model.eval()
    generator = torch.Generator().manual_seed(1)
    losses, start = [], time.monotonic()
    while time.monotonic() - start < EVAL_BUDGET_S:
        batch = torch.randn(512, 128, generator=generator).to(device)
        losses.append(nn.functional.mse_loss(model(batch), batch).item())
    model.train()
    return sum(losses) / len(losses), len(losses)


def train_epoch(model: DDP, optimizer: torch.optim.Optimizer, epoch: int, device: torch.device) -> None:
    for step in range(5):
        batch = torch.randn(32, 128, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Sequential(nn.Linear(128, 1024), nn.GELU(), nn.Linear(1024, 128)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        train_epoch(model, optimizer, epoch, device)
        if dist.get_rank() == 0 and epoch == 0:
            loss, batches = evaluate(model.module, device)
            print(f"epoch {epoch} validation loss {loss:.4f} over {batches} batches", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
