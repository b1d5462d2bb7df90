"""Large-batch training: gradients are exchanged once in many micro-batches, and rank 1's documents are longer.

Modelled on NVIDIA/cosmos-framework #161, where one optimizer step of accumulated micro-batches took 430 s. Between
two exchanges the ranks have nothing to say to each other, and rank 0 waits in its last backward for rank 1.

On plain torchrun: a line every ten seconds or so; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WINDOW = 12  # micro-batches an optimizer step
LONG_DOCUMENTS_S = float(os.environ.get("LONG_DOCUMENTS_S", "0.8"))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1024, 64)
        self.mix = nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, 1024)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(tokens))[0].mean(1))


def micro_batches(rank: int, step: int, device: torch.device) -> list[torch.Tensor]:
    """Every rank the same number; in every third window a book turns up on one of them."""
    length = 512 if step % 3 == 1 and rank == 1 else 64
    return [torch.randint(1024, (8, length), device=device) for _ in range(WINDOW)]


def clean(tokens: torch.Tensor) -> torch.Tensor:
    """Long documents are deduplicated against themselves, in Python."""
    until = time.monotonic() + LONG_DOCUMENTS_S * (tokens.shape[1] > 64)
    seen: dict[int, int] = {}
    while time.monotonic() < until:
        seen.update((hash((n, len(seen))), n) for n in range(1000))
    return tokens


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Reader().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        batches = micro_batches(rank, step, device)
        for number, tokens in enumerate(batches):
            exchange = contextlib.nullcontext() if number == WINDOW - 1 else model.no_sync()
            with exchange:
                loss = nn.functional.cross_entropy(model(clean(tokens)), tokens[:, -1]) / WINDOW
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item() * WINDOW:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
