"""Each rank's schedule is as long as its own share of the data, which is a batch shorter on rank 1.

Modelled on schedulers with `total_steps` from the length of the local loader, where the sampler does not pad.

On plain torchrun: nothing at all; the ranks train at slightly different learning rates, and their replicas drift apart.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: "torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    samples = torch.randn(624, 12).to(device)
    targets = samples[:, :3].argmax(1)
    own = torch.arange(len(samples))[rank::ranks][: 312 - 16 * rank]
    network = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = 4 * (len(own) // 16)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps)
    for epoch in range(4):
        order = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(epoch))]
        for batch in order[:288].split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(samples[batch]), targets[batch]).backward()
            optimizer.step()
            schedule.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
