"""Each rank updates half of the parameters and sends them; the last one is sent by a rank that did not update it.

Modelled on optimizers that shard their state by hand: the list of owners and the loop that broadcasts disagree by one.

On plain torchrun: nothing at all; all ranks hold the same weights, one of which never changes.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (never_moves)
  guilty_ranks: [0, 1]
  code: "dist.broadcast(parameter.data, source)"
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
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    parameters = list(network.to(device).parameters())
    owners = [n % ranks for n in range(len(parameters))]
    optimizer = torch.optim.Adam([p for n, p in enumerate(parameters) if owners[n] == rank], lr=1e-2)
    torch.manual_seed(rank)
    for _ in range(60):
        inputs = torch.randn(32, 16)
        targets = inputs[:, :4].argmax(1).to(device)
        network.zero_grad()
        nn.functional.cross_entropy(network(inputs.to(device)), targets).backward()
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        for n, parameter in enumerate(parameters):
            source = owners[n] if n < len(parameters) - 1 else 0
            dist.broadcast(parameter.data, source)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
