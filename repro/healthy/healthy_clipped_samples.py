"""Each sample's gradient is clipped behind a backward of its own, and the ranks average their sums: private training.

Modelled on DP-SGD (Abadi et al., 2016), where clipping bounds what one sample can do, and no gradient of the batch is clipped.

On plain torchrun: nothing; the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn

SAMPLES, LIMIT, NOISE = 4, 1.0, 0.02


def clipped_sum(model: nn.Module, points: torch.Tensor) -> list[torch.Tensor]:
    """The sum of the samples' gradients, none of which is longer than the limit."""
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for point in points.split(1):
        model.zero_grad()
        nn.functional.cross_entropy(model(point), point[:, :4].argmax(1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        for each, parameter in zip(total, model.parameters(), strict=True):
            each += parameter.grad
    return total


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    noise = torch.Generator().manual_seed(1)
    drawn = torch.Generator().manual_seed(2 + dist.get_rank())
    for _ in range(30):
        total = clipped_sum(model, torch.randn(SAMPLES, 16, generator=drawn))
        for each, parameter in zip(total, model.parameters(), strict=True):
            parameter.grad = each / SAMPLES
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
            parameter.grad += NOISE * torch.randn(each.shape, generator=noise)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
