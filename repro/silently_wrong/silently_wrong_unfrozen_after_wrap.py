"""The body is frozen while DDP wraps the model, and unfrozen for fine-tuning later: DDP never reduces its gradients.

On plain torchrun: nothing; the head is equal on both ranks, the body is not.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: 'net["body"].requires_grad_(True)'
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.ModuleDict({"body": nn.Linear(16, 32), "head": nn.Linear(32, 4)})
    net["body"].requires_grad_(False)
    model = DDP(Classifier(net))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for step in range(24):
        if step == 8:
            net["body"].requires_grad_(True)
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


class Classifier(nn.Module):
    def __init__(self, parts: nn.ModuleDict):
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts["head"](torch.relu(self.parts["body"](x)))


if __name__ == "__main__":
    main()
