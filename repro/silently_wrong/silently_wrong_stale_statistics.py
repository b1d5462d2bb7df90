"""An average of the weights is evaluated with the running statistics of the start: parameters are averaged, buffers are not.

What moving averages over `zip(average.parameters(), model.parameters())` do to batch normalization.

On plain torchrun: nothing at all; the average is worse than the model, and seems to be averaged wrongly.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (stale_statistics)
  guilty_ranks: [0, 1]
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    average = copy.deepcopy(network).eval().requires_grad_(False)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    held_out = torch.randn(64, 16, generator=torch.Generator().manual_seed(9)) * 3 + 1
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(24):
        points = torch.randn(32, 16, generator=generator) * 3 + 1
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), network.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)
            if step % 4 == 3:
                right = (average(held_out).argmax(1) == held_out[:, :4].argmax(1)).float().mean()
                print(f"step {step} loss {loss.item():.4f} accuracy {right:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
