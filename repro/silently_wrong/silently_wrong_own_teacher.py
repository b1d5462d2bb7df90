"""The model starts equally on all ranks, as DDP sees to, and its averaged teacher from each rank's own weights.

Modelled on self-distillation jobs that make the teacher anew where they should copy the student: seeded by the rank, it
is another one on each.

On plain torchrun: nothing at all; the loss falls.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (own_follower)
  guilty_ranks: [0, 1]
  code: ["torch.manual_seed(100 + rank)", "teacher = network().to(device)"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(100 + rank)
    student = DistributedDataParallel(network().to(device))
    teacher = network().to(device)
    teacher.requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    for _ in range(80):
        inputs = torch.randn(32, 16).to(device)
        with torch.no_grad():
            targets = teacher(inputs).softmax(-1)
        predicted = student(inputs).log_softmax(-1)
        loss = nn.functional.kl_div(predicted, targets, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(teacher.parameters(), student.parameters(), strict=True):
                average.lerp_(parameter, 0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
