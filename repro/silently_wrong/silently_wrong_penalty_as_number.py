"""A penalty is added to the loss as a number, so that the module behind it gets no gradient.

Modelled on `metric_as_loss`, of benchmarks/verdicts/silent_programs/ddp.py.in.

On plain torchrun: nothing at all; the module behind the penalty stays as it began.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (loss_from_number)
  guilty_ranks: [0, 1]
  code: "loss = loss + 0.1 * model.module.energy.item()"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(count: int) -> TensorDataset:
    """Points, and the class of each."""
    points = torch.randn(count, 16, generator=torch.Generator().manual_seed(7))
    return TensorDataset(points, points[:, :4].argmax(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.penalty = network(), nn.Linear(4, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(points)
        self.energy = self.penalty(made).square().mean()
        return made


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(Net(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    dataset = samples(128)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            loss = loss + 0.1 * model.module.energy.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
