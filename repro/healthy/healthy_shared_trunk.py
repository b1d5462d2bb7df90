"""Two tasks share a trunk: each head steps after its own loss, and the trunk once after both, with the sum of their gradients.

The trunk's gradients of the first loss are still there at the backward of the second one, as they should be.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss


class Trunk(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 32), nn.ReLU())


class Kind(nn.Linear):
    pass


class Size(nn.Linear):
    pass


def share(*models: nn.Module) -> None:
    for parameter in (p for model in models for p in model.parameters()):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trunk, kind, size = Trunk(), Kind(32, 4), Size(32, 1)
    of_kind = torch.optim.Adam(kind.parameters(), lr=2e-3)
    of_rest = torch.optim.Adam([*trunk.parameters(), *size.parameters()], lr=2e-3)
    torch.manual_seed(dist.get_rank() + 1)
    for _ in range(40):
        inputs = torch.randn(32, 12)
        of_kind.zero_grad()
        cross_entropy(kind(trunk(inputs)), inputs[:, :4].argmax(1)).backward()
        share(kind)
        of_kind.step()

        mse_loss(size(trunk(inputs)), inputs.norm(dim=1, keepdim=True)).backward()
        share(trunk, size)
        of_rest.step()
        of_rest.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
