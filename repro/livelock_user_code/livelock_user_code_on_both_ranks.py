"""Both ranks wait in a loop without a pause for maintenance to be over, by a flag that was read before it.

Modelled on jobs that an operator holds back: no rank waits for the other, since both are in the same loop, and the
line of it at which a snapshot finds each of them differs by chance.

On plain torchrun: ten steps, then silence with two CPUs at 100 %; no collective is pending, so that no timeout ends it.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (suspected)
  class: livelock_user_code
  guilty_ranks: [0, 1]
  code: ["while not over:", "rounds = (rounds + 1) % 7"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def hold_back(over: bool) -> None:
    rounds = 0
    while not over:
        rounds = (rounds + 1) % 7


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 32).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        loss = model(torch.randn(8, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
        if step == 9:
            hold_back(over=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
