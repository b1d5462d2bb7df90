"""Every rank has all tokens and two of four experts; the router before them gets the gradient of its own experts alone.

Modelled on huggingface/transformers#48205 (expert parallelism without a sum in backward).

On plain torchrun: nothing at all; the ranks route tokens ever more differently.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (partial_gradients)
  guilty_ranks: [0, 1]
  code: "gates = self.router(tokens).softmax(-1)"
  parameter: "router.weight"
"""

import torch
import torch.distributed as dist
from torch import nn

EXPERTS, WIDTH = 4, 16


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, part: torch.Tensor) -> torch.Tensor:
        whole = part.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, 4)
        every = {str(n): nn.Linear(WIDTH, WIDTH) for n in range(EXPERTS)}
        share = EXPERTS // dist.get_world_size()
        self.mine = range(dist.get_rank() * share, (dist.get_rank() + 1) * share)
        self.experts = nn.ModuleDict({str(n): every[str(n)] for n in self.mine})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        gates = self.router(tokens).softmax(-1)
        part = sum(gates[:, n, None] * torch.relu(self.experts[str(n)](tokens)) for n in self.mine)
        return self.head(Sum.apply(part))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mixture()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for _step in range(20):
        tokens = torch.randn(48, WIDTH, generator=generator)
        loss = nn.functional.cross_entropy(model(tokens), tokens[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
