"""The forward runs inside DDP's no_sync for every micro-batch and the backward outside: no gradient is ever reduced.

Modelled on questions about accumulation under DDP. It is the forward that decides: what ran inside `no_sync` is not reduced
by a backward outside of it, also at the last micro-batch.

On plain torchrun: nothing at all; the loss falls, and each rank trains a model of its own.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: ["with self.model.no_sync():"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATION = 4


class Training:
    def __init__(self, device: torch.device) -> None:
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        self.model, self.micro_batches = DistributedDataParallel(model.to(device)), 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def micro_batch(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """One forward and backward, and a step at every fourth."""
        self.micro_batches += 1
        with self.model.no_sync():
            loss = nn.functional.mse_loss(self.model(inputs), targets) / ACCUMULATION
        loss.backward()
        if self.micro_batches % ACCUMULATION == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    training = Training(device)
    torch.manual_seed(10 + dist.get_rank())
    for _ in range(240):
        inputs = torch.randn(16, 8)
        training.micro_batch(inputs.to(device), inputs.sum(1, keepdim=True).to(device))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
