"""An adapter has an optimizer of its own, and the forward never calls it.

Modelled on adapters that are configured for a layer which does not run.

On plain torchrun: nothing at all; the adapter stays as it began.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (without_gradients)
  guilty_ranks: [0, 1]
  code: "second.step()"
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
        self.body, self.adapter = network(), nn.Linear(4, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(points)
        return made


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(Net(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.module.body.parameters(), lr=0.02)
    second = torch.optim.SGD(model.module.adapter.parameters(), lr=0.1)
    dataset = samples(128)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            second.zero_grad()
            loss.backward()
            optimizer.step()
            second.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
