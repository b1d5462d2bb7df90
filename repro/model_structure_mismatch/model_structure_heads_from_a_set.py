"""Heads are made by looping over a set of strings: the ranks have the same parameters, in another order each.

Modelled on huggingface/accelerate #1481 (parameters that differ between ranks) and pytorch/pytorch #32426. Python
hashes strings anew in each process, all heads have one shape, and DDP compares shapes: nothing fails. The gradient
of one rank's first head is averaged with that of another rank's.

On plain torchrun: nothing at all; the loss hardly falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [wrong, crashed]
  class: model_structure_mismatch
  guilty_ranks: [1]
  code: "DDP(Multitask(TASKS)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TASKS = {"age", "colour", "country", "genre", "language", "mood", "style", "topic", "year", "season"}


class Multitask(nn.Module):
    def __init__(self, tasks: set[str], dim: int = 32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, dim), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(dim, 8) for task in tasks})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.trunk(x)
        return {task: head(features) for task, head in self.heads.items()}


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Multitask(TASKS).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        batch = torch.randn(64, 16, device=device)
        answers = model(batch)
        labels = {task: batch[:, i].gt(0).long() + i % 3 for i, task in enumerate(sorted(TASKS))}
        loss = sum(nn.functional.cross_entropy(answers[task], labels[task]) for task in TASKS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
