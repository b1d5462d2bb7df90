"""Rank 1's documents are much longer than rank 0's: its forward takes many times as long, every step.

Modelled on traceopt-ai/traceml #252: one rank computes longer, DDP's all-reduce makes all backward times
equal, and no table of times a rank names the culprit. Batches are cut by documents, not by tokens, and
rank 1's source holds the books.

On plain torchrun: completes with exit code 0 in about 15 s, at the pace of the slower rank.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: slow
  class: straggler_rank
  guilty_ranks: [1]
  code: ["weights = torch.softmax(", "return weights @ v", "x = x + self.attend(", "self.encoder(tokens)"]
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Encoder(nn.Module):
    def __init__(self, dim: int = 64, layers: int = 6):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        return weights @ v

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for qkv in self.qkv:
            x = x + self.attend(*qkv(x).chunk(3, dim=-1))
        return x


class Classifier(nn.Module):
    """A trained head on a frozen encoder."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder().requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(tokens).mean(dim=1))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    document_tokens = {"news": 128, "books": 1280}[("news", "books")[rank % 2]]
    torch.manual_seed(rank)
    model = DDP(Classifier().to(device))
    optimizer = torch.optim.AdamW(model.module.head.parameters(), lr=1e-3)
    for step in range(30):
        start = time.perf_counter()
        batch = torch.randint(256, (2, document_tokens), device=device)
        loss = nn.functional.cross_entropy(model(batch), batch[:, 0] % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took_s = time.perf_counter() - start
        print(f"rank {rank} step {step} loss {loss.item():.4f} took {took_s:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
