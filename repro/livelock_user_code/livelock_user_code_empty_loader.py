"""Rank 1 owns one document of the smallest source, too few for a batch, and its endless feed asks an empty loader forever.

Modelled on NVIDIA/Megatron-Energon #6 and karpathy/nanochat #371 (feeds that go round their shard again and again).
Each round writes events, as a loader does that works; none of them delivers anything.

On plain torchrun: steps until the schedule comes to the small source, then silence at full CPU until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: ["--timeout", "120"]
  outcome: hung (suspected)
  class: livelock_user_code
  guilty_ranks: [1]
  code: ["while True:", "yield from loader"]
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZES = {"news": 64, "manuals": 3}


def feed(documents: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    loader = DataLoader(TensorDataset(documents), batch_size=2, drop_last=True)
    while True:
        yield from loader


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    feeds = {name: feed(torch.randn(count, 16)[rank::size]) for name, count in SIZES.items()}
    for step in range(60):
        (batch,) = next(feeds["manuals" if step % 20 == 19 else "news"])
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
