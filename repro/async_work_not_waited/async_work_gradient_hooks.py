"""Gradients are reduced in hooks, beside backward, and nobody waits for the reductions before the optimizer's step.

Modelled on OpenNMT/OpenNMT-py #2295 (`all_reduce(..., async_op=True)` followed at once by what needs its result)
and on hand-made overlap of communication with backward. The handles go out of scope with the hook.

On plain torchrun: nothing at all; the loss falls, the replicas part by and by.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: async_work_not_waited
  guilty_ranks: [0, 1]
  code: "dist.all_reduce(parameter.grad, async_op=True)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn


class Averager:
    """Reduces each gradient as soon as it is there."""

    def __init__(self, model: nn.Module) -> None:
        self.world_size = dist.get_world_size()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
            parameter.register_post_accumulate_grad_hook(self._reduce)

    def _reduce(self, parameter: torch.Tensor) -> None:
        parameter.grad.div_(self.world_size)
        dist.all_reduce(parameter.grad, async_op=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).to(device)
    Averager(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(30):
        batch = torch.randn(32, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
