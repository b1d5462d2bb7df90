"""Rank 1 drops a trial's model after the trial's group: torch takes the group down with the interpreter lock held.

pytorch/pytorch #56297, as it stands in torch 2.13: DDP's reducer is the last to hold the group, its destructor joins
gloo's threads, and one of them wants the lock to let go of a tensor that Python has dropped. Which trial meets it is
chance; rank 0, which keeps its models, does not.

On plain torchrun: some dozens of trials, then silence; rank 0 waits for rank 1 to make the next group.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: gil_held_native_call
  guilty_ranks: [1]
  code: "trial(number, models)"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TRIALS = 1000


def trial(number: int, models: list[nn.Module]) -> None:
    torch.manual_seed(number)
    group = dist.new_group()
    model = DDP(nn.Linear(8, 8), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + number))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    dist.all_reduce(torch.ones(100_000), group=group)
    if dist.get_rank() == 0:
        models.append(model)
    dist.destroy_process_group(group)


def main() -> None:
    dist.init_process_group("gloo")
    models: list[nn.Module] = []
    for number in range(TRIALS):
        trial(number, models)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
