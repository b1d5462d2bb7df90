"""A recording is too short for rank 1's step and is passed over; its counter goes on, and takes it to validation early.

Modelled on training loops around `try: step(batch) / except ValueError: skipped += 1`: rank 1 has done one step fewer when
the batch's number says that it is time to validate, and gathers scores while rank 0 reduces gradients.

On plain torchrun: two validations, then silence until gloo's timeout, or its error about sizes.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (proven), crashed]
  class: data_divergent_control_flow
  guilty_ranks: [1]
  code: "except ValueError:"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SHORTEST, EVERY = 64, 4
LENGTHS = ((90, 80, 120, 75), (70, 99, 85, 110))


def cropped(length: int, device: torch.device) -> torch.Tensor:
    if length < SHORTEST:
        raise ValueError(f"a recording of {length} frames")
    return torch.randn(16, SHORTEST, device=device)


def train_on(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def validate(model: nn.Module, device: torch.device) -> float:
    score = model.module(torch.ones(8, SHORTEST, device=device)).square().mean().detach()
    scores = [torch.zeros_like(score) for _ in range(dist.get_world_size())]
    dist.all_gather(scores, score)
    return torch.stack(scores).mean().item()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = nn.Linear(SHORTEST, 96), nn.GELU(), nn.Linear(96, SHORTEST)
    model = DDP(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    skipped = 0
    for number in range(1, 41):
        length = LENGTHS[rank][number % 4] if (number, rank) != (10, 1) else 41
        try:
            train_on(model, optimizer, cropped(length, device))
        except ValueError:
            skipped += 1
        if number % EVERY == 0:
            print(f"batch {number} score {validate(model, device):.3f}, {skipped} left out", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
