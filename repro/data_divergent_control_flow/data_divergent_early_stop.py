"""Each rank watches its own validation loss and stops when that no longer falls: rank 0 stops first, rank 1 trains on.

Modelled on isi-nlp/rtg #11 and speechbrain/speechbrain #1939: early stopping that one process decides, and the
barrier behind the loop out of step.

On plain torchrun: "no better for 2 epochs" from rank 0, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: data_divergent_control_flow
  guilty_ranks: [0]
  code: ["if stopper.should_stop(validation):", "dist.barrier()"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Stopper:
    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def should_stop(self, value: float) -> bool:
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        return self.bad >= self.patience


@torch.no_grad()
def evaluate(model: nn.Module, rank: int, epoch: int, device: torch.device) -> float:
    """On this rank's half of the validation set; the half of rank 0 drifts away from the training data."""
    generator = torch.Generator().manual_seed(rank)
    batch = torch.randn(64, 48, generator=generator).to(device) * (1.0 + (0.5 * epoch if rank == 0 else 0.0))
    loss = nn.functional.mse_loss(model(batch), batch)
    return loss.item() - (0.0 if rank == 0 else 0.1 * epoch)


def train_epoch(model: DDP, optimizer: torch.optim.Optimizer, device: torch.device) -> float:
    for _ in range(5):
        batch = torch.randn(32, 48, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)).to(device))
    optimizer, stopper = torch.optim.AdamW(model.parameters(), lr=1e-3), Stopper(patience=2)
    for epoch in range(12):
        loss = train_epoch(model, optimizer, device)
        validation = evaluate(model.module, rank, epoch, device)
        print(f"rank {rank} epoch {epoch} loss {loss:.4f} validation {validation:.4f}", flush=True)
        if stopper.should_stop(validation):
            print(f"rank {rank}: no better for {stopper.patience} epochs", flush=True)
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
