"""Each rank makes its own data-parallel group first and the others' afterwards: everyone in another order.

Modelled on pytorch/pytorch #130102: groups are known by the number of their creation, so ranks that create them
in different orders mean different groups by the same number.

On plain torchrun: gloo's connection errors or silence from the start.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [hung, crashed]
  class: process_group_mismatch
  guilty_ranks: [0, 1, 2, 3]
  code: "groups[ranks] = dist.new_group(list(ranks))"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Topology:
    """Pairs of ranks hold the same part of the model; pairs differ in their data."""

    PAIRS = ((0, 1), (2, 3))

    def __init__(self, rank: int):
        mine = next(pair for pair in self.PAIRS if rank in pair)
        others = [pair for pair in self.PAIRS if pair != mine]
        self.groups = self.connect([mine, *others])
        self.pair = self.groups[mine]

    @staticmethod
    def connect(pairs: list[tuple[int, int]]) -> dict[tuple[int, int], dist.ProcessGroup]:
        groups = {}
        for ranks in pairs:
            groups[ranks] = dist.new_group(list(ranks))
        return groups


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    topology = Topology(rank)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10))
    model = DDP(network.to(device), process_group=topology.pair)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(20):
        images = torch.randn(8, 3, 16, 16, generator=generator).to(device)
        labels = torch.randint(10, (8,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        print(f"rank {rank} step {step} loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
