"""The last window of each epoch holds fewer micro-batches, and each loss is divided by the usual number all the same.

Modelled on gradient accumulation with a rest at the end of an epoch.

On plain torchrun: nothing at all; the last step of each epoch is half as large.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (short_window)
  guilty_ranks: [0, 1]
  code: "(loss / 4).backward()"
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


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    dataset = samples(192)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for number, (points, labels) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(points), labels)
            model.require_backward_grad_sync = number % 4 == 0 or number == len(loader)
            (loss / 4).backward()
            if model.require_backward_grad_sync:
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
