"""Adapters on a frozen model run in reentrant checkpoints whose input asks for no gradient: only the head on top is trained.

Modelled on cloneofsimo/lora#26 and locuslab/open-unlearning#178 (`enable_input_require_grads` is missing).

On plain torchrun: a warning of torch's among all others, "None of the inputs have requires_grad=True".

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (run_without_graph)
  guilty_ranks: [0, 1]
  code: ["hidden = torch.tanh(checkpoint(layer, hidden, use_reentrant=True))"]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / 4)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base(hidden) + hidden @ self.down.T @ self.up.T


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16).requires_grad_(False)
        self.layers = nn.ModuleList(Adapted(nn.Linear(16, 16)) for _ in range(3))
        self.score = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = torch.tanh(checkpoint(layer, hidden, use_reentrant=True))
        return self.score(hidden.mean(1))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(20):
        tokens = torch.randint(50, (16, 8), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens), (tokens[:, 0] > 24).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
