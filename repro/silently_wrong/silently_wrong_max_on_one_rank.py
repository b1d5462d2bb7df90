"""One rank asks for the maximum of the gradients where its peer asks for the sum.

Modelled on a setting that is read from each host's own file: torch.distributed compares neither operation nor type of what
ranks reduce, and gloo gives each what it asked for.

On plain torchrun: nothing at all; the ranks train different models.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (differing_reductions)
  guilty_ranks: [0, 1]
  code: "dist.all_reduce(parameter.grad, op=operation)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    operation = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}[("sum", "max")[rank % 2]]
    torch.manual_seed(20 + rank)
    for step in range(12):
        batch = torch.randn(16, 10, device=device)
        loss = nn.functional.cross_entropy(model(batch), batch[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=operation)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
