"""The losses of four micro-batches are each divided by four, and so are the gradients before the optimizer's step.

Two halves of one recipe, each from another place: the gradients are four times too small.

On plain torchrun: nothing at all; the loss falls more slowly than it should.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (divided_twice)
  guilty_ranks: [0, 1]
  code: "parameter.grad /= MICRO_BATCHES"
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, LENGTH, MICRO_BATCHES = 40, 16, 4


def micro_batches(generator: torch.Generator) -> list[torch.Tensor]:
    return [torch.randint(VOCABULARY, (8, LENGTH + 1), generator=generator) for _ in range(MICRO_BATCHES)]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(VOCABULARY, 24), nn.Linear(24, VOCABULARY)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(rank)
    for step in range(16):
        optimizer.zero_grad()
        for number, ids in enumerate(micro_batches(generator), start=1):
            with contextlib.nullcontext() if number == MICRO_BATCHES else model.no_sync():
                loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                (loss / MICRO_BATCHES).backward()
        for parameter in model.parameters():
            parameter.grad /= MICRO_BATCHES
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
