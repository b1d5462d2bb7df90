"""A pretrained model is given a new head after the optimizer was made: the new head is in no optimizer.

The usual form of it is transfer learning: `model.head = nn.Linear(...)` below `optimizer = SGD(model.parameters())`.
DDP reduces the new head's gradients, the optimizer goes on to hold the old one, and the loss still falls a little.

On plain torchrun: nothing at all; the accuracy stays low.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (stale_optimizer)
  guilty_ranks: [0, 1]
  code: ["optimizer = torch.optim.SGD(model.parameters()"]
  parameter: head.weight
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Classifier(nn.Module):
    def __init__(self, width: int = 32, classes: int = 1000) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def replace_head(self, classes: int) -> None:
        width = self.head.in_features
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.replace_head(classes=4)
    wrapped = DistributedDataParallel(model.to(device))
    for step in range(30):
        x = torch.randn(32, 16, device=device)
        loss = nn.functional.cross_entropy(wrapped(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
