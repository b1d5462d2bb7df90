"""A hand-made schedule halves the rate when the loss has not fallen for three steps: each rank's own loss, so one rank halves first.

Modelled on training scripts with a schedule of their own. DDP averages gradients, and nothing averages what they are
multiplied by.

On plain torchrun: nothing at all; the replicas drift apart.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (broken_equalities)
  guilty_ranks: [0, 1]
  code: ["group[\\"lr\\"] *= 0.5"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Cooldown:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.best, self.bad = optimizer, float("inf"), 0

    def update(self, loss: float) -> None:
        """Halves the rate after three steps that were no better than the best."""
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        if self.bad >= 3:
            self.bad = 0
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.5


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cooldown = Cooldown(optimizer)
    torch.manual_seed(dist.get_rank())
    for _ in range(150):
        inputs = torch.randn(16, 8)
        predicted = model(inputs.to(device)).squeeze(1)
        loss = (predicted - inputs.sum(1).to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cooldown.update(loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
