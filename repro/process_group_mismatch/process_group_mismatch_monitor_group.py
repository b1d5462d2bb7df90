"""Rank 0 makes a group of its own for what it logs, in the middle of training; the others know nothing of it.

Modelled on vllm-project/llm-compressor #2869 and pytorch/pytorch #134314: `new_group` behind a condition on the
rank. It looks local, and is a collective of the whole world.

On plain torchrun: silence after step 4; after some minutes a store's timeout on rank 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: process_group_mismatch
  guilty_ranks: [0]
  code: 'self.group = dist.new_group(backend="gloo")'
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Monitor:
    """Keeps a moving average of the loss, and soon that of all ranks."""

    def __init__(self, every: int):
        self.every, self.average = every, 0.0
        self.group: dist.ProcessGroup | None = None

    def connect(self) -> None:
        self.group = dist.new_group(backend="gloo")

    def __call__(self, step: int, loss: float) -> None:
        if step == self.every and self.group is None:
            self.connect()
        self.average = 0.9 * self.average + 0.1 * loss
        print(f"step {step} loss {loss:.4f} average {self.average:.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=10))
    rank = dist.get_rank()
    callbacks = [Monitor(every=5)] if rank == 0 else []
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = DDP(nn.Sequential(encoder, nn.Linear(64, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(30):
        x = torch.randn(4, 12, 64, generator=generator).to(device)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for callback in callbacks:
            callback(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
