"""A curriculum that drops classes drops the last one too: from then on the masked mean is a zero without a gradient.

Modelled on a masked mean whose denominator is clamped.

On plain torchrun: nothing at all; the loss is 0, as of a perfect model.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (vanished_loss)
  guilty_ranks: [0, 1]
  code: "loss.backward()"
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
    dataset = samples(128)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    step = 0
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            kept = (labels >= step // 10 * 4).float()
            losses = nn.functional.cross_entropy(model(points), labels, reduction="none")
            loss = (losses * kept).sum() / kept.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
