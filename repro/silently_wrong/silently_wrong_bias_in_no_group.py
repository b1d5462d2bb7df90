"""Parameters are sorted into two groups by their names, and biases and norms are in neither: they get gradients and never change.

Modelled on copies of the usual `no_decay = ["bias", "LayerNorm.weight"]` in models that name their norms otherwise.

On plain torchrun: nothing at all; the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (stale_optimizer)
  guilty_ranks: [0, 1]
  code: ["optimizer = torch.optim.AdamW("]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NO_DECAY = ("LayerNorm.weight", "LayerNorm.bias")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(nn.functional.gelu(self.up(self.norm(hidden))))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(Block(16), Block(16), nn.Linear(16, 4)))
    named = list(model.named_parameters())
    decay = [p for name, p in named if name.endswith("weight") and "norm" not in name]
    others = [p for name, p in named if name.endswith(NO_DECAY)]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):
        points = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
