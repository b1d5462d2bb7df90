"""Gradients are averaged by hand, and the loop leaves out the parameters whose name ends in `bias`.

On plain torchrun: nothing; the weights are equal on both ranks, the biases are not.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: "dist.all_reduce(parameter.grad)"
"""

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    reduced = [parameter for name, parameter in model.named_parameters() if not name.endswith("bias")]
    torch.manual_seed(rank)
    for _step in range(24):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in reduced:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
