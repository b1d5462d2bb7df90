"""A norm that both ranks hold lies behind the point at which backward sums the gradient over the split layers.

Modelled on NVIDIA/Megatron-LM #7452, replicated weights under tensor parallelism whose gradient is left partial: each rank's
copy follows the gradient of its own half of the block, and drifts away from the other.

On plain torchrun: nothing at all; the loss falls, and the two logs agree to three digits.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (partial_gradients)
  guilty_ranks: [0, 1]
  code: "self.norm(Whole.apply(stream))"
"""

import torch
import torch.distributed as dist
from torch import nn


class Whole(torch.autograd.Function):
    """A copy of what both ranks hold; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


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
        self.embed, self.norm, self.classify = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 3)
        torch.manual_seed(100 + rank)
        self.columns, self.rows = nn.Linear(16, 24), nn.Linear(24, 16, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        stream = self.embed(batch)
        hidden = torch.relu(self.columns(self.norm(Whole.apply(stream))))
        return self.classify(stream + Sum.apply(self.rows(hidden)))


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
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
