"""Each rank makes the groups that it is in first and the others afterwards: not everyone in the same order.

Modelled on pytorch/pytorch #130102: groups are known by the number of their creation, so ranks that create them
in different orders mean different groups by the same number.

On plain torchrun: gloo's connection errors or silence from the start.

Promise:
  launch: torchrun --standalone --nproc-per-node 3
  outcome: [hung (suspected), crashed]
  class: process_group_mismatch
  guilty_ranks: [2]
  code: "self.groups[name] = dist.new_group(members)"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Topology:
    """Two ranks share the embedding table between them; all three train the layers above it."""

    MEMBERS = {"table": [0, 1], "layers": [0, 1, 2]}

    def __init__(self, rank: int):
        self.groups: dict[str, dist.ProcessGroup] = {}
        mine_first = sorted(self.MEMBERS, key=lambda name: rank not in self.MEMBERS[name])
        for name in mine_first:
            self.connect(name, self.MEMBERS[name])

    def connect(self, name: str, members: list[int]) -> None:
        self.groups[name] = dist.new_group(members)


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    topology = Topology(rank)
    torch.manual_seed(0)
    table = nn.Embedding(100, 48).to(device)
    layers = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 10)).to(device)
    model = DDP(layers, process_group=topology.groups["layers"])
    optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(20):
        words = torch.randint(100, (8, 12), generator=generator).to(device)
        labels = torch.randint(10, (8,), generator=generator).to(device)
        loss = nn.functional.cross_entropy(model(table(words).mean(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        if rank in topology.MEMBERS["table"]:
            dist.all_reduce(table.weight.grad, group=topology.groups["table"])
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
