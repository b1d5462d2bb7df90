"""Rank 0 validates through the DDP model itself, whose forward sends its buffers to everyone; rank 1 waits in a barrier.

Modelled on pytorch/pytorch #54059: validation behind `if gpu == 0:`, and the barrier behind it is blamed. A
model with running statistics broadcasts them in each forward, even under no_grad: all ranks have to come.

On plain torchrun: the first epoch's steps, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: ["scores.append(nn.functional.cross_entropy(model(images)", "score = validate(model, device)", "if dist.get_rank() == 0:"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).mean(dim=(2, 3)))


@torch.no_grad()
def validate(model: nn.Module, device: torch.device) -> float:
    generator, scores = torch.Generator().manual_seed(1), []
    for _ in range(4):
        images = torch.randn(16, 3, 16, 16, generator=generator).to(device)
        targets = torch.randint(10, (16,), generator=generator).to(device)
        scores.append(nn.functional.cross_entropy(model(images), targets).item())
    return sum(scores) / len(scores)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Classifier().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(5):
        for step in range(6):
            images = torch.randn(16, 3, 16, 16, device=device)
            targets = torch.randint(10, (16,), device=device)
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {dist.get_rank()} epoch {epoch} loss {loss.item():.4f}", flush=True)
        if dist.get_rank() == 0:
            score = validate(model, device)
            print(f"epoch {epoch} validation {score:.4f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
