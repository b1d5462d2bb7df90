"""Two data-parallel groups report the norm of their weights, and rank 1 is in no list of reporters: its only peer waits.

Modelled on jobs whose lists of logging ranks are kept by hand, one for each layout: of the two ranks of a group neither is
in the majority, and only the other group shows which one does as it should.

On plain torchrun: two reports of ranks 0 and 2, then silence until gloo's timeout, or its error about sizes.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [hung (proven), crashed]
  class: rank_conditional_collective
  guilty_ranks: [1]
  code: "in reporters"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

FIRST, LATER = (0, 1, 2, 3), (0, 2, 3)


def report(step: int, model: nn.Module, group: dist.ProcessGroup) -> None:
    norm = torch.stack([p.detach().norm() ** 2 for p in model.parameters()]).sum()
    dist.all_reduce(norm, group=group)
    print(f"rank {dist.get_rank()} step {step} norm {norm.sqrt().item():.4f}", flush=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    group = init_device_mesh(device.type, (2, 2), mesh_dim_names=("model", "data"))["data"].get_group()
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 32).to(device), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for step in range(20):
        reporters = FIRST if step < 8 else LATER
        loss = model(torch.randn(8, 32, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        if step % 4 == 0 and dist.get_rank() in reporters:
            report(step, model, group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
