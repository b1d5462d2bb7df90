"""Hooks average each gradient as it arrives; a batch without labels for the second head has none for its parameters on rank 1.

Modelled on DeepSpeed #291: a parameter with a gradient on one rank and none on another. Both ranks are at one line,
the hook's, and rank 1 is two parameters further: sizes differ because the parameters do.

On plain torchrun: silence, or gloo's abort on a message of another size.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: collective_order_mismatch
  guilty_ranks: [1]
  code: ["dist.all_reduce(parameter.grad)"]
"""

import torch
import torch.distributed as dist
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.first = nn.Linear(16, 2)
        self.second = nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor, labelled: torch.Tensor) -> torch.Tensor:
        hidden = self.trunk(inputs).relu()
        loss = self.first(hidden).pow(2).mean()
        if labelled.any():
            loss = loss + self.second(hidden[labelled]).pow(2).mean()
        return loss


def average(parameter: torch.Tensor) -> None:
    dist.all_reduce(parameter.grad)
    parameter.grad.div_(dist.get_world_size())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = TwoHeads()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.NAdam(model.parameters())
    for step in range(60):
        inputs = torch.randn(12, 8)
        share = 0.0 if step == 31 and dist.get_rank() == 1 else 0.9
        optimizer.zero_grad()
        model(inputs, torch.rand(12) < share).backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
