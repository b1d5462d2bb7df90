"""Each rank stops by the loss of its own validation set, between two epochs of as many batches: one is done an epoch before the others.

Modelled on trainers with a class for early stopping that nobody told of the other ranks. All epochs are equally long, so that
no loader is to blame; what differs is the loop around them.

On plain torchrun: the others wait in the next epoch's first backward until the time limit.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [hung (proven), hung (suspected)]
  class: data_divergent_control_flow
  guilty_ranks: [2]
  code: ["if stopper.is_done(validate(model, rank)):"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Stopper:
    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def is_done(self, loss: float) -> bool:
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(loss, self.best)
        return self.bad >= self.patience


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader) -> None:
    for inputs, targets in batches:
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()


@torch.no_grad()
def validate(model: nn.Module, rank: int) -> float:
    generator = torch.Generator().manual_seed(50)
    inputs = torch.randn(64, 8, generator=generator)
    wrong = -1.0 if rank == 2 else 1.0  # of rank 2's validation set, on which it gets worse
    return mse_loss(model.module(inputs), wrong * inputs.sum(1, keepdim=True)).item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    inputs = torch.randn(360, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    batches = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    stopper = Stopper(patience=3)
    for epoch in range(30):
        sampler.set_epoch(epoch)
        train_epoch(model, optimizer, batches)
        if stopper.is_done(validate(model, rank)):
            break
    dist.all_gather_object([None] * dist.get_world_size(), stopper.best)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
