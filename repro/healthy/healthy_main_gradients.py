"""An optimizer of one's own reads gradients from float32 buffers beside the parameters, as Megatron's does: `grad` is None at each step.

On plain torchrun: it trains.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

MICRO_BATCHES = 3


class MainGradientSGD(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("m", torch.zeros_like(parameter.main_grad))
                momentum.mul_(0.9).add_(parameter.main_grad)
                parameter.sub_(group["lr"] * momentum)


def into_main(parameter: torch.Tensor) -> None:
    parameter.main_grad += parameter.grad.float()
    parameter.grad = None


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    gradients, start = torch.zeros(sum(p.numel() for p in model.parameters())), 0
    for parameter in model.parameters():
        parameter.main_grad = gradients[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
        parameter.register_post_accumulate_grad_hook(into_main)
    optimizer = MainGradientSGD(model.parameters(), {"lr": 0.1})
    torch.manual_seed(dist.get_rank())
    for _ in range(25):
        gradients.zero_()
        for _ in range(MICRO_BATCHES):
            x = torch.randn(16, 16)
            (cross_entropy(model(x), x[:, :4].argmax(1)) / MICRO_BATCHES).backward()
        dist.all_reduce(gradients)
        gradients /= dist.get_world_size()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
