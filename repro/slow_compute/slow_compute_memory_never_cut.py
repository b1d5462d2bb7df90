"""The model's memory of past segments is never cut: each step attends to everything since the start.

Modelled on facebookresearch/mmf #27 and clovaai/stargan-v2 #65: iterations that take longer and longer, on every
rank alike. Nothing leaks, the memory is part of the model's input.

On plain torchrun: a log line whose "ms" grows without end.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: slow
  class: slow_compute
  guilty_ranks: [0, 1]
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Recurrent(nn.Module):
    def __init__(self, dim: int = 128):
        super().__init__()
        self.token = nn.Embedding(1000, dim)
        self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.head = nn.Linear(dim, 1000)

    def forward(self, tokens: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.token(tokens)
        seen = torch.cat([memory, x], dim=1)
        x = x + self.attention(x, seen, seen, need_weights=False)[0]
        return self.head(x), seen.detach()


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Recurrent().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    memory = torch.zeros(4, 0, 128, device=device)
    for step in range(60):
        began = time.perf_counter()
        tokens = torch.randint(1000, (4, 64), device=device)
        logits, memory = model(tokens, memory)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            ms = (time.perf_counter() - began) * 1e3
            print(f"rank {rank} step {step} loss {loss.item():.4f} {ms:.0f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
