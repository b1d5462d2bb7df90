"""Gradients are averaged by hand, but every rank has drawn its own initial weights.

Modelled on facebookresearch/detr #544: the seed is `seed + rank`, set before the model is built, which DDP forgives
because it broadcasts rank 0's weights. Here gradients are averaged without it, between models that were never one.

On plain torchrun: nothing at all; the loss falls more slowly than it should.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: wrong
  class: silently_wrong (replica_drift)
  guilty_ranks: [0, 1]
  code: ["torch.manual_seed(seed + rank)", "dist.all_reduce(parameter.grad)"]
"""

import os
import random

import torch
import torch.distributed as dist
from torch import nn


def seed_everything(seed: int, rank: int) -> None:
    """Each rank augments its data in its own way."""
    random.seed(seed + rank)
    torch.manual_seed(seed + rank)


def average_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    seed_everything(42, rank)
    layers = [nn.Conv1d(1, 16, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(), nn.Linear(128, 2)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(40):
        wave = torch.randn(32, 1, 64, device=device)
        labels = (wave.mean((1, 2)) > 0).long()
        loss = nn.functional.cross_entropy(model(wave), labels)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if step % 10 == 0:
            print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
