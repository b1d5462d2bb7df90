"""A router sends each rank's tokens to the experts they like; each expert is a unit of FSDP, gathered when it runs.

Modelled on pytorch/pytorch #126616: FSDP around every expert of a mixture, and a hang after several steps. Rank 1
gets a batch that leaves one expert without tokens, and passes it by.

On plain torchrun: some steps, then silence until gloo's timeout, or a size that does not match.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: [hung (suspected), crashed]
  class: divergent_module_execution
  guilty_ranks: [1]
  code: ["if not chosen.any():", "mixed[chosen] = expert(x[chosen])", "loss.backward()", "loss = (model(tokens, topic)"]
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Mixture(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, (2 + i) * width), nn.GELU(), nn.Linear((2 + i) * width, width))
            for i in range(experts)
        )

    def forward(self, x: torch.Tensor, topic: torch.Tensor) -> torch.Tensor:
        choice = (topic + (self.router(x).argmax(dim=-1) > 99).long()) % len(self.experts)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = choice == number
            if not chosen.any():
                continue
            mixed[chosen] = expert(x[chosen])
        return x + mixed


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixture, self.head = Mixture(32, 4), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, topic: torch.Tensor) -> torch.Tensor:
        return self.head(self.mixture(x, topic))


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = Model().to(device)
    for expert in model.mixture.experts:
        fully_shard(expert)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):  # the corpus of rank 1 turns to few topics
        topics = 4 if dist.get_rank() == 0 or step < 8 else 2
        tokens = torch.randn(64, 32, generator=generator).to(device)
        topic = torch.arange(64, device=device) % topics
        loss = (model(tokens, topic) - tokens).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {dist.get_rank()} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
