"""Two ranks report the norm of their weights every four steps, until a list of muted ranks is read that names rank 1.

Modelled on jobs whose logging is turned off by hand, host by host, while they run: one rank waits and one went on, and
only the steps before show which of the two left the common course.

On plain torchrun: three reports of each rank, then silence until gloo's timeout, or its error about sizes.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: rank_conditional_collective
  guilty_ranks: [1]
  code: "not in muted"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

EVERY, MUTED_FROM = 4, 10


def muted_ranks(step: int) -> tuple[int, ...]:
    return (1,) if step >= MUTED_FROM else ()


def report(step: int, model: nn.Module) -> None:
    norm = torch.stack([p.detach().norm() ** 2 for p in model.parameters()]).sum()
    dist.all_reduce(norm)
    print(f"rank {dist.get_rank()} step {step} norm {norm.sqrt().item():.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 32).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for step in range(20):
        loss = model(torch.randn(8, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        muted = muted_ranks(step)
        if step % EVERY == 0 and dist.get_rank() not in muted:
            report(step, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
