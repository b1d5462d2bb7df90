"""An encoder is trained to fool a critic of its codes, and what that leaves in the critic is in each of the critic's steps.

Modelled on adversarial training whose clearing was moved behind the steps, as Lightning-AI/pytorch-lightning#557 discusses.

On plain torchrun: nothing at all; the critic is a little worse than it should be.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (foreign_gradients)
  guilty_ranks: [0, 1]
  code: ["told.backward()", "critic_optimizer.zero_grad()"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss


class Codes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(12, 4), nn.Linear(4, 12)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        codes = self.inner(inputs)
        return codes, self.outer(codes)


class Critic(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))


def share(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    codes, critic = Codes(), Critic()
    optimizer = torch.optim.Adam(codes.parameters(), lr=2e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank() + 1)
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    for _ in range(40):
        inputs = torch.randn(32, 12)
        optimizer.zero_grad()
        found, again = codes(inputs)
        fooled = binary_cross_entropy_with_logits(critic(found), ones)
        (mse_loss(again, inputs) + 0.1 * fooled).backward()
        share(codes)
        optimizer.step()

        found, _ = codes(inputs)
        guesses, truths = critic(found.detach()), critic(torch.randn(32, 4))
        told = binary_cross_entropy_with_logits(guesses, zeros)
        told = told + binary_cross_entropy_with_logits(truths, ones)
        told.backward()
        share(critic)
        critic_optimizer.step()
        critic_optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
