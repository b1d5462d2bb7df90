"""A step is four micro-batches of two tasks, and gradients are cleared where the task changes: the first task is never trained.

Modelled on NVIDIA-NeMo/Automodel#3530, where a change of the shape cleared gradients in the middle of a step.

On plain torchrun: nothing at all; the loss of one task falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (cleared_between_backwards)
  guilty_ranks: [0, 1]
  code: "self.network.zero_grad()"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

TASKS = ("kinds", "kinds", "signs", "signs")


class Model:
    def __init__(self) -> None:
        self.network = DistributedDataParallel(nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4)))
        self.task = TASKS[0]

    def prepare(self, task: str) -> None:
        """Switches to another task, whose counters begin anew."""
        if task != self.task:
            self.task, self.seen = task, 0
            self.network.zero_grad()

    def learn(self, task: str) -> None:
        self.prepare(task)
        inputs = torch.randn(16, 16)
        targets = inputs[:, :4].argmax(1) if task == "kinds" else 2 * (inputs[:, 0] > 0).long()
        loss = nn.functional.cross_entropy(self.network(inputs), targets)
        (loss / len(TASKS)).backward()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.network.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for _ in range(40):
        for task in TASKS:
            model.learn(task)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
