"""A hook that a decorator runs on rank 0 alone computes a metric over all ranks; rank 1 is in the next epoch already.

Modelled on Lightning #19604: a metric over all ranks in a hook. Rank 1 is in a loop over batches that rank 0 has left.

On plain torchrun: silence after the first epoch, rank 1 in the batches of the next one.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: ["dist.all_gather(out", "print(f\\"accuracy", "self.metric.compute()"]
"""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def on_first_rank(function):
    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        if int(os.environ["RANK"]) == 0:
            function(*args, **kwargs)

    return wrapped


class Accuracy:
    def __init__(self) -> None:
        self.counts = torch.zeros(2)

    def update(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        self.counts += torch.tensor([(logits.argmax(1) == targets).sum().item(), len(targets)])

    def compute(self) -> float:
        out = [torch.zeros(2) for _ in range(dist.get_world_size())]
        dist.all_gather(out, self.counts)
        return torch.stack(out).sum(0).tolist()[0]


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.metric = nn.Linear(20, 3), Accuracy()

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    @on_first_rank
    def on_epoch_end(self) -> None:
        print(f"accuracy {self.metric.compute():.3f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(120, 20), torch.randint(0, 3, (120,)))
    train, held_out = DataLoader(rows, 10, sampler=DistributedSampler(rows)), DataLoader(rows, 30)
    model = DistributedDataParallel(task := Task())
    optimizer = torch.optim.AdamW(task.parameters())
    for _ in range(3):
        for batch in train:
            model(batch).backward()
            optimizer.step()
        with torch.no_grad():
            for inputs, targets in held_out:
                task.metric.update(task.net(inputs), targets)
        task.on_epoch_end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
