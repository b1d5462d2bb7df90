"""Rank 0 reads for all four ranks and broadcasts each batch; the others begin to use it while it arrives.

Modelled on OpenNMT/OpenNMT-py #2295 and pytorch/pytorch #27806 (what async_op=True means for whoever goes on): the
handle is kept in a variable, "to be waited for later", and the next batch takes its place.

On plain torchrun: nothing at all; ranks 1 to 3 now and then train on the zeros that the buffer began with.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: wrong
  class: async_work_not_waited
  guilty_ranks: [0, 1, 2, 3]
  code: "self.work = dist.broadcast("
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SharedReader:
    """One process reads the disk; all train on slices of the same batch."""

    def __init__(self, batches: int, device: torch.device) -> None:
        self.batches, self.device = batches, device
        self.work = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.batches):
            batch = torch.zeros(4 * 32, 64, device=self.device)
            if dist.get_rank() == 0:
                batch.normal_()
            self.work = dist.broadcast(batch, src=0, async_op=True)
            yield batch.chunk(dist.get_world_size())[dist.get_rank()]


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(SharedReader(24, device)):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
