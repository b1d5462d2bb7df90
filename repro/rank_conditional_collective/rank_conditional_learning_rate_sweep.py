"""Rank 0 alone looks for a learning rate with the wrapped model, while rank 1 waits for the one that was found.

Modelled on fastai's and Lightning's learning rate finders behind `if rank == 0`. The sweep trains as an epoch does, in a
loop of its own, and nothing has trained before.

On plain torchrun: silence from the start, or gloo's error about sizes.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: ["loss.backward()", "predicted = model(inputs)"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def sweep(
    model: nn.Module, batches: list, lowest: float = 1e-5, highest: float = 1.0, rounds: int = 8
) -> float:
    """The rate of the smallest loss, of rates that grow from batch to batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lowest)
    best, least = lowest, float("inf")
    for n in range(rounds):
        rate = lowest * (highest / lowest) ** (n / (rounds - 1))
        optimizer.param_groups[0]["lr"] = rate
        inputs, targets = batches[n % len(batches)]
        predicted = model(inputs)
        loss = nn.functional.mse_loss(predicted, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < least:
            best, least = rate, loss.item()
    return best


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(1)
    batches = [(torch.randn(8, 16, device=device), torch.randn(8, 4, device=device)) for _ in range(30)]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(device))
    rate = torch.zeros(1, device=device)
    if dist.get_rank() == 0:
        rate[0] = sweep(model, batches)
    dist.broadcast(rate, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate.item())
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
