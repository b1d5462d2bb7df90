"""A backbone is detached while its head is tried out, and the line stays in when the whole model is trained.

DDP with find_unused_parameters=True accepts it: the backbone never gets a gradient, and the optimizer that holds it
changes nothing of it but what weight decay takes away.

On plain torchrun: nothing at all; the head learns, and the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (cut_off)
  guilty_ranks: [0, 1]
  code: "hidden = hidden.detach()"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 32), nn.GELU())
        self.head = nn.Linear(32, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = self.backbone(points)
        hidden = hidden.detach()
        return self.head(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(16):
        points = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
