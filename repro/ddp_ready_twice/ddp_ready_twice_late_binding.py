"""A lambda in a loop: by the time backward recomputes, every checkpoint runs the last block.

Modelled on the report this project began with, which read "Parameter at index 192 with name
blocks.11.mlp.fc2.weight has been marked as ready twice" (microsoft/FocalNet #4 shows the same message)
and concluded that DDP and activation checkpointing exclude each other. They do not: `block` is looked
up when the lambda runs, which for a recompute is after the loop has ended.

On plain torchrun: "Expected to mark a variable ready only once" on both ranks in the first backward; 5 s.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: crashed
  class: ddp_ready_twice
  guilty_ranks: [0, 1]
  code: ["checkpoint(lambda h: block(h)", "loss.backward()"]
  parameter: blocks.3.mlp.fc2.weight
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class MLP(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim, bias=False)
        self.fc2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = MLP(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class TinyLM(nn.Module):
    def __init__(self, dim: int = 64, layers: int = 4):
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))
        self.head = nn.Linear(dim, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(lambda h: block(h), x, use_reentrant=True)
        return self.head(x)


if __name__ == "__main__":
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    model = DDP(TinyLM().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        tokens = torch.randint(256, (4, 65), device=device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()
