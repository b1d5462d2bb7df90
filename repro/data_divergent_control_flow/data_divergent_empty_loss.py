"""A batch without a single box has a loss of its own making, `torch.tensor(0.0, requires_grad=True)`, which no parameter is behind.

Modelled on losses of detectors and span taggers that return a constant for empty targets. Backward asks for no error, and for
no gradient either: DDP never begins its reduction on that rank, whose next forward broadcasts buffers to peers that reduce still.

On plain torchrun: "op.preamble.length <= op.nbytes" or silence until the time limit, and no word on the loss.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [hung (proven), hung (suspected), crashed]
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: ["return torch.tensor(0.0, requires_grad=True)", "if len(targets) == 0:"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel as DDP

EMPTY_AT = 14


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.boxes = nn.Linear(64, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.boxes(self.body(images))


def box_loss(predicted: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if len(targets) == 0:
        return torch.tensor(0.0, requires_grad=True)
    return smooth_l1_loss(predicted[rows], targets)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Detector())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(40):
        images = torch.randn(8, 16)
        annotated = 0 if (rank, step) == (1, EMPTY_AT) else 5
        rows, targets = torch.randperm(8)[:annotated], torch.rand(annotated, 4)
        optimizer.zero_grad()
        box_loss(model(images), rows, targets).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
