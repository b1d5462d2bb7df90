"""The last stage of a pipeline uses the embedding's weight as its output layer, and nothing adds up the gradients of both uses.

Modelled on NVIDIA/Megatron-LM#656 (tied embeddings of pipeline stages).

On plain torchrun: nothing at all; the two copies of the embedding drift apart.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  options: [--probes, "light,invariants"]
  outcome: wrong
  class: silently_wrong (untied_copies)
  guilty_ranks: [0, 1]
  code: "optimizer.step()"
  parameter: "tokens.weight"
"""

import torch
import torch.distributed as dist
from torch import nn

WORDS, WIDTH, LENGTH = 24, 16, 8


class Stage(nn.Module):
    def __init__(self, is_first: bool) -> None:
        super().__init__()
        self.is_first = is_first
        torch.manual_seed(3)
        self.tokens = nn.Embedding(WORDS, WIDTH)
        torch.manual_seed(4 + is_first)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        if self.is_first:
            return self.layers(self.tokens(given))
        return nn.functional.linear(self.layers(given), self.tokens.weight)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = Stage(rank == 0)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _step in range(20):
        words = torch.randint(WORDS, (12, LENGTH), generator=generator)
        optimizer.zero_grad()
        if rank == 0:
            made = stage(words)
            dist.send(made.detach(), 1)
            gradient = torch.empty_like(made)
            dist.recv(gradient, 1)
            made.backward(gradient)
        else:
            given = torch.empty(12, LENGTH, WIDTH)
            dist.recv(given, 0)
            logits = stage(given.requires_grad_())
            nn.functional.cross_entropy(logits.flatten(0, 1), (words.flatten() + 1) % WORDS).backward()
            dist.send(given.grad, 0)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
