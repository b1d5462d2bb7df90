"""Gradients of the last layer are summed over the ranks twice.

Modelled on `reduced_twice`, of benchmarks/verdicts/silent_programs/averaged_by_hand.py.in.

On plain torchrun: nothing at all; the last layer learns twice as fast.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (summed_twice)
  guilty_ranks: [0, 1]
  code: "dist.all_reduce(parameter.grad)  # of the last layer"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def samples(count: int) -> TensorDataset:
    """Points, and the class of each."""
    points = torch.randn(count, 16, generator=torch.Generator().manual_seed(7))
    return TensorDataset(points, points[:, :4].argmax(1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def main() -> None:
    dist.init_process_group("gloo")
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    dataset = samples(128)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            for parameter in model[2].parameters():
                dist.all_reduce(parameter.grad)  # of the last layer
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
