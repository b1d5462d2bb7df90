"""Rank 1 leaves out the optimizer's step for a batch that is not finite, but this optimizer's step sends parameters.

Modelled on guards around `optimizer.step()` that met ZeroRedundancyOptimizer or a sharded optimizer later: each rank
looks at its own batch, and the step broadcasts what every rank has updated.

On plain torchrun: silence after step 17, until gloo's timeout, or its error about sizes.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: ["if torch.isfinite(inputs).all():"]
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def batches(device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets; rank 1's eighteenth batch has a sensor's overflow in it."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for n in range(60):
        inputs, targets = torch.randn(8, 24, generator=generator), torch.randn(8, 3, generator=generator)
        if (n, dist.get_rank()) == (17, 1):
            inputs[0, 0] = float("inf")
        yield inputs.to(device), targets.to(device)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 3)).to(device)
    replica = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    for inputs, targets in batches(device):
        optimizer.zero_grad()
        nn.functional.mse_loss(replica(inputs), targets).backward()
        if torch.isfinite(inputs).all():
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
