"""The average of the weights is kept on rank 0 alone, and every rank evaluates its own copy of it.

The usual form of it is an EMA whose `update` stands behind `if rank == 0`, "since all ranks have the same weights", and
whose validation is shared out: the mean of the metrics is that of one trained and of one untrained model.

On plain torchrun: nothing at all; the validation loss is too high.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (evaluation_copies)
  guilty_ranks: [1]
  code: ["return self.average(x)"]
"""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Average:
    """An exponential moving average of a model's weights."""

    def __init__(self, model: nn.Module, decay: float = 0.9) -> None:
        self.average, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mean, parameter in zip(self.average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 1 - self.decay)

    @torch.no_grad()
    def predict(self, x: torch.Tensor) -> torch.Tensor:
        return self.average(x)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    wrapped, average = DistributedDataParallel(model), Average(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        x = torch.randn(32, 16, device=device)
        loss = nn.functional.cross_entropy(wrapped(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            average.update(model)
        if step % 4 == 3:
            held_out = torch.randn(64, 16, device=device)
            error = nn.functional.cross_entropy(average.predict(held_out), held_out[:, :4].argmax(1))
            dist.all_reduce(error)
            print(f"step {step} validation {error.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
