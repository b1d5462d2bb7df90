"""A rank reduces at the end of its own data: with a batch less than the others it does so one step earlier.

Modelled on huggingface/accelerate #1847: gradients are synchronised at the end of the loader whatever the count.
The ranks run the same number of steps here, over data that are read again from the start.

On plain torchrun: steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [hung (proven), crashed]
  class: grad_sync_mismatch
  guilty_ranks: [3]
  code: ["with self.model.no_sync():", "if self.should_sync(step):"]
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 4


class Accumulator:
    """Gradients over several batches, reduced in the last of them."""

    def __init__(self, model: DDP, batches_in_epoch: int) -> None:
        self.model, self.batches_in_epoch = model, batches_in_epoch
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def should_sync(self, step: int) -> bool:
        position = step % self.batches_in_epoch
        return (position + 1) % ACCUMULATE == 0 or position + 1 == self.batches_in_epoch

    def run(self, step: int, batch: torch.Tensor) -> torch.Tensor:
        if self.should_sync(step):
            loss = nn.functional.mse_loss(self.model(batch), batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            with self.model.no_sync():
                loss = nn.functional.mse_loss(self.model(batch), batch)
                loss.backward()
        return loss


def endless(count: int, device: torch.device) -> Iterator[torch.Tensor]:
    data = torch.randn(count, 8, 32, device=device)
    while True:
        yield from data


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    count = (66 - rank) // 4  # batches of this rank
    model = DDP(nn.Sequential(nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 32)).to(device))
    accumulator, batches = Accumulator(model, count), endless(count, device)
    for step in range(47):
        loss = accumulator.run(step, next(batches))
        if step % 5 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
