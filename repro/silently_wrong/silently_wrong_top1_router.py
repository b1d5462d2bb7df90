"""The weights of the chosen experts are divided by their sum, and one expert is chosen: its weight is 1, and the router never learns.

Modelled on jingyaogong/minimind#858.

On plain torchrun: nothing at all; the gradient of the router is 1e-10.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (rounded_away)
  guilty_ranks: [0, 1]
  code: ["scores = self.gate(hidden).softmax(-1)"]
  parameter: "moe.gate.weight"
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Mixture(nn.Module):
    def __init__(self, width: int, experts: int = 4, chosen: int = 1) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.chosen = chosen

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scores = self.gate(hidden).softmax(-1)
        weights, indices = scores.topk(self.chosen, dim=-1)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        every = torch.stack([expert(hidden) for expert in self.experts], 1)
        picked = every.gather(1, indices[..., None].expand(-1, -1, hidden.shape[-1]))
        return hidden + (weights[..., None] * picked).sum(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.moe, self.last = nn.Linear(16, 24), Mixture(24), nn.Linear(24, 4)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.last(self.moe(self.first(points)))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):
        points = torch.randn(64, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
