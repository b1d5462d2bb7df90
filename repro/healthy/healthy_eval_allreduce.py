"""Rank 0 validates for 15 s; rank 1 is already in the all_reduce of the flag that says whether to stop early.

Modelled on Synthefy/synthefy-nori #86: validation on rank 0 alone, while the others wait in the collective that
tells them to stop, an hour and longer. Nothing is wrong; the ranks agree, and training goes on.

On plain torchrun: twenty steps, 15 s of silence, a line about the validation, twenty more; exit code 0.

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

VALIDATION_S = float(os.environ.get("VALIDATION_S", "15"))


class EarlyStopping:
    """Stops when the validation loss has not improved for `patience` epochs; every rank hears it."""

    def __init__(self, patience: int, device: torch.device) -> None:
        self.best, self.bad_epochs, self.patience = float("inf"), 0, patience
        self.flag = torch.zeros(1, device=device)

    def update(self, loss: float) -> None:
        self.bad_epochs = 0 if loss < self.best else self.bad_epochs + 1
        self.best = min(self.best, loss)

    def agreed(self) -> bool:
        self.flag.fill_(float(self.bad_epochs >= self.patience))
        dist.all_reduce(self.flag, op=dist.ReduceOp.MAX)
        return bool(self.flag.item())


@torch.no_grad()
def validate(model: nn.Module, device: torch.device) -> float:
    model.eval()
    total, count, until = 0.0, 0, time.monotonic() + VALIDATION_S
    while time.monotonic() < until:
        series = torch.randn(64, 48, 8, device=device).cumsum(1)
        total, count = total + nn.functional.l1_loss(model(series[:, :-1]), series[:, 1:]).item(), count + 1
    model.train()
    return total / count


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    forecaster = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    model, stopping = DDP(forecaster.to(device)), EarlyStopping(3, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for _step in range(20):
            series = torch.randn(16, 48, 8, device=device).cumsum(1)
            loss = nn.functional.l1_loss(model(series[:, :-1]), series[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {dist.get_rank()} epoch {epoch} loss {loss.item():.4f}", flush=True)
        if dist.get_rank() == 0 and epoch == 0:
            stopping.update(validate(model.module, device))
            print(f"epoch {epoch} validation loss {stopping.best:.4f}", flush=True)
        if stopping.agreed():
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
