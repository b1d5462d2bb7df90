"""After a spike all ranks restore a split layer, and all of them from the shard of rank 0.

Modelled on restarts that name a shard by a variable which the launcher sets no more: shapes fit, as each shard has the
same, and one half of the layer stands in the place of the other.

On plain torchrun: nothing at all; the loss jumps once more, and falls again.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (broken_equalities)
  guilty_ranks: [0, 1]
  code: "model.rows.load_state_dict(saved["
"""

import os

import torch
import torch.distributed as dist
from torch import nn


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        value = value.clone()
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Block(nn.Module):
    def __init__(self, rank: int):
        super().__init__()
        torch.manual_seed(0)
        self.classify = nn.Linear(12, 3)
        torch.manual_seed(100 + rank)
        self.columns, self.rows = nn.Linear(12, 24), nn.Linear(24, 12, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.columns(batch))
        return self.classify(batch + Sum.apply(self.rows(hidden)))


def gathered(shard: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The shards of all ranks, as a checkpoint has them."""
    found: list[dict[str, torch.Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(found, {name: value.cpu() for name, value in shard.items()})
    return found


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = Block(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for step in range(12):
        batch = torch.randn(16, 12)
        loss = nn.functional.cross_entropy(model(batch), batch[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 4:
            saved = gathered(model.rows.state_dict())
        if step == 7:
            model.rows.load_state_dict(saved[int(os.environ.get("SHARD", 0))])
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
