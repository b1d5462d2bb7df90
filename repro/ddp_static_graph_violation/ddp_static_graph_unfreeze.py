"""A backbone is unfrozen by a flag in forward after some steps, in a model that DDP was told never changes.

Modelled on deepinsight/insightface #2288 and msed-Ebrahimi/ARoFace #5: "Your training graph has changed in this
iteration", from a trainer that switches static_graph on because it is faster.

On plain torchrun: that error on both ranks, in backward.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_static_graph_violation
  guilty_ranks: [0, 1]
  code: "loss.backward()"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WARM_UP = 5


class FineTuned(nn.Module):
    def __init__(self, dim: int = 64):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(32, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.head = nn.Linear(dim, 5)
        self.tunes_backbone = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.tunes_backbone):
            features = self.backbone(x)
        return self.head(features)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(FineTuned().to(device), static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        model.module.tunes_backbone = step >= WARM_UP
        batch = torch.randn(32, 32, device=device)
        loss = nn.functional.cross_entropy(model(batch), torch.arange(32, device=device) % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
