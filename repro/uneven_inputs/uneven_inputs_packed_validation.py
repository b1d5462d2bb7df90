"""Rank 0's documents pack into one more sequence than its peers': it goes on validating alone, unsharding weights.

Modelled on PrimeIntellect-ai/prime-rl #2515: each FSDP forward gathers the weights, and a validation that runs to
the end of the data has as many forwards as this rank's variable-length samples fill.

On plain torchrun: "validation" from all but rank 0, then silence until gloo's timeout.

Promise:
  launch: torchrun --standalone --nproc-per-node 4
  outcome: [hung (suspected), crashed]
  class: uneven_inputs
  guilty_ranks: [0]
  code: ["total += loss_of(model, tokens.to(device)).item()", "return nn.functional.cross_entropy(model(tokens", "for tokens in packed(documents(rank)"]
"""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

VOCABULARY, WINDOW = 128, 64


def documents(rank: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    for length in range(40 if rank else 60, 110 if rank else 130, 7):
        yield torch.randint(VOCABULARY, (length,), generator=generator)


def packed(parts: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    buffer = torch.empty(0, dtype=torch.long)
    for part in parts:
        buffer = torch.cat([buffer, part])
        while len(buffer) >= WINDOW:
            yield buffer[:WINDOW]
            buffer = buffer[WINDOW:]


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:])


@torch.no_grad()
def validate(model: nn.Module, rank: int, device: torch.device) -> float:
    total = 0.0
    for tokens in packed(documents(rank)):
        total += loss_of(model, tokens.to(device)).item()
    return total


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    layers = (nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, VOCABULARY))
    model = nn.Sequential(*layers).to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(12):
        tokens = torch.randint(VOCABULARY, (WINDOW,), device=device)
        loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 5:
            print(f"step {step} validation {validate(model, dist.get_rank(), device):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
