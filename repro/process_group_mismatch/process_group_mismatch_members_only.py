"""The experts' group is made by its own members alone; the next one, made by all, then has two numbers.

Modelled on cornstarch-org/Cornstarch #76 and pytorch/pytorch #130102: creating a group is a collective of the
whole world, also for those who will not be in it. Rank 0 is in no expert group and goes on without.

On plain torchrun: silence from the start; after some minutes a store's timeout, or gloo's connection errors.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [hung (suspected), crashed]
  class: process_group_mismatch
  guilty_ranks: [0]
  code: ['groups[name] = dist.new_group(list(members))', 'self.group = dist.new_group(backend="gloo")']
"""

import os

import torch
import torch.distributed as dist
from torch import nn

EXPERTS = {"text": (1, 2)}  # rank 0 holds what all share


def expert_groups(rank: int) -> dict[str, dist.ProcessGroup]:
    groups = {}
    for name, members in EXPERTS.items():
        if rank in members:
            groups[name] = dist.new_group(list(members))
    return groups


class Log:
    """Averages what is logged over all ranks, beside what the GPUs exchange."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo")

    def __call__(self, step: int, loss: torch.Tensor) -> None:
        mean = loss.detach().cpu()
        dist.all_reduce(mean, group=self.group)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    groups = expert_groups(rank)
    log = Log()
    torch.manual_seed(0)
    experts = {name: nn.Linear(64, 64) for name in EXPERTS}
    model = nn.ModuleDict({"shared": nn.Linear(64, 64), **experts}).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(20):
        x = torch.randn(16, 64, generator=generator).to(device)
        h = torch.relu(model["shared"](x))
        loss = (h + sum(model[name](h) for name in EXPERTS) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in model["shared"].parameters()])
        dist.all_reduce(gradient)
        for name, group in groups.items():
            for p in model[name].parameters():
                dist.all_reduce(p.grad, group=group)
        optimizer.step()
        log(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
