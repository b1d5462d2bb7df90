"""An expert that got no token returns a new empty tensor, which cuts its graph: that rank's backward has no all_to_all.

Modelled on mixtures of experts whose grouped kernels refuse empty inputs. The rank goes on to average its dense gradients, while
its peers wait in the backward of their dispatch; the loop over parameters in which it waits is the same on all of them.

On plain torchrun: "op.preamble.length <= op.nbytes", or silence until the time limit.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [hung (proven), hung (suspected), crashed]
  class: collective_order_mismatch
  guilty_ranks: [1]
  code: ["dist.all_reduce(parameter.grad)"]
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

EMPTY_AT = 12


class Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.splits = sent, received
        out = tokens.new_empty(sum(received), tokens.shape[1])
        dist.all_to_all_single(out, tokens.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sent, received = ctx.splits
        out = gradients[0].new_empty(sum(sent), gradients[0].shape[1])
        dist.all_to_all_single(out, gradients[0].contiguous(), sent, received)
        return out, None, None


class Expert(nn.Linear):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) == 0:
            return torch.empty_like(tokens.detach())
        return super().forward(tokens)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.expert = nn.Linear(16, 16), Expert(16, 16)

    def forward(self, inputs: torch.Tensor, sent: list[int]) -> torch.Tensor:
        counts = torch.empty(len(sent), dtype=torch.long)
        dist.all_to_all_single(counts, torch.tensor(sent))
        received = counts.tolist()
        hidden = self.dense(inputs)
        own = Dispatch.apply(self.expert(Dispatch.apply(hidden, sent, received)), received, sent)
        return hidden + own


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mixture()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(30):
        chosen = [6, 0, 6] if step == EMPTY_AT else [4, 4, 4]
        optimizer.zero_grad()
        model(torch.randn(12, 16), chosen).square().mean().backward()
        for name, parameter in model.named_parameters():
            if "expert" not in name:
                dist.all_reduce(parameter.grad)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
