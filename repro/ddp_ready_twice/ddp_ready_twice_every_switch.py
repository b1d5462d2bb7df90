"""Every switch that is said to help is set, and DDP still sees the last block's parameters twice.

Modelled on the reports this project began with: find_unused_parameters, gradient_as_bucket_view, bucket size and
broadcast_buffers were blamed or cleared in turn, and none had a part in it. What is computed again in backward is
looked up when the lambda runs, and by then the loop variable is the last block.

On plain torchrun: "Expected to mark a variable ready only once" on both ranks in the first backward; 5 s.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_ready_twice
  guilty_ranks: [0, 1]
  code: ["checkpoint(lambda z: stage(z)", "loss.backward()"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Stage(nn.Module):
    """A residual pair of convolutions."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z + self.second(torch.relu(self.first(self.norm(z))))


class Encoder(nn.Module):
    def __init__(self, channels: int = 16, stages: int = 3):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.stages = nn.ModuleList(Stage(channels) for _ in range(stages))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        z = self.stem(images)
        for stage in self.stages:
            z = checkpoint(lambda z: stage(z), z, use_reentrant=True)
        return self.head(z.mean(dim=(2, 3)))


if __name__ == "__main__":
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    model = DDP(
        Encoder().to(device),
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
        bucket_cap_mb=1,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        images, labels = torch.randn(8, 3, 16, 16, device=device), torch.randint(10, (8,), device=device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()
