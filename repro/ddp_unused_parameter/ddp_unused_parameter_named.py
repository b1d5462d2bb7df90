"""The auxiliary classifier runs only while its loss has a weight, which is zero; TORCH_DISTRIBUTED_DEBUG makes DDP say its name.

Modelled on the auxiliary heads of segmentation models: the configuration turns the loss off, and the head stays in the model.

On plain torchrun: "Expected to have finished reduction in the prior iteration", with the names of the parameters, on both ranks.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_unused_parameter
  guilty_ranks: [0, 1]
  code: ["scores, extra = model(rows)", "if self.weight > 0:"]
  parameter: auxiliary.weight
"""

import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Segmenter(nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.classifier = nn.Linear(64, 5)
        self.auxiliary = nn.Linear(64, 5, bias=False)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        features, extra = self.body(rows), None
        if self.weight > 0:
            extra = self.auxiliary(features)
        return self.classifier(features), extra


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(Segmenter(weight=0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(20):
        rows, labels = torch.randn(16, 32), torch.randint(5, (16,))
        scores, extra = model(rows)
        loss = nn.functional.cross_entropy(scores, labels)
        if extra is not None:
            loss = loss + model.module.weight * nn.functional.cross_entropy(extra, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
