"""The model builds a fifth pyramid level that its forward never uses; DDP waits for its gradient.

Modelled on pytorch/pytorch #43259: a feature pyramid with five outputs in `__init__`, four of them used
in `forward`. The first backward leaves a bucket unfilled without a word, the second forward says so.

On plain torchrun: "Expected to have finished reduction in the prior iteration" on both ranks after one
logged step; 5 s. The message gives indices, not names.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_unused_parameter
  guilty_ranks: [0, 1]
  code: ["scores = model(images)", "zip(self.heads[:4], levels)"]
  parameter: heads.4.weight
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Pyramid(nn.Module):
    def __init__(self, channels: int = 16, classes: int = 10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(channels, channels, 3, stride=2, padding=1) for _ in range(4))
        self.heads = nn.ModuleList(nn.Conv2d(channels, classes, 1, bias=False) for _ in range(5))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, levels = torch.relu(self.stem(images)), []
        for down in self.down:
            x = torch.relu(down(x))
            levels.append(x)
        return sum(head(level).mean(dim=(2, 3)) for head, level in zip(self.heads[:4], levels))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Pyramid().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(20):
        images = torch.randn(8, 3, 32, 32, device=device)
        labels = torch.randint(10, (8,), device=device)
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
