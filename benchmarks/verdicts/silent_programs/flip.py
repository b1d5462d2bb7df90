"""One bit of one parameter's gradient flips on one of three ranks, after the reduction: `flip.py TENSOR ELEMENT BIT STEP RANK`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from workload import start

STEPS, WIDTH, LAYERS = 16, 96, 30


def main() -> None:
    tensor, element, bit, at, struck = map(int, sys.argv[1:])
    rank, _ = start()
    torch.set_num_threads(1)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = DDP(nn.Sequential(nn.Linear(16, WIDTH), *layers, nn.Linear(WIDTH, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    parameters = list(model.parameters())
    for step in range(STEPS):
        points = torch.randn(16, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(points), points[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        if (rank, step) == (struck, at):
            bits = parameters[tensor % len(parameters)].grad.view(torch.int32).view(-1)
            bits[element % len(bits)] ^= 1 << bit
        optimizer.step()
    dist.destroy_process_group()


main()
