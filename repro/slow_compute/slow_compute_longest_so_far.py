"""One document is far longer than all others, and from there on every batch is padded to its length.

Modelled on collators that pad to "the longest seen so far", so that shapes stay few: one outlier raises the
maximum for good. Losses are right, since the padding is masked; each step costs as much as the outlier did.

On plain python: steps many times slower from the outlier on, and no error.

Promise:
  launch: python
  options: [--timeout, "40"]
  outcome: slow
  class: slow_compute
  guilty_ranks: [0]
  code: ["loss.backward()", "return self.head(self.layer("]
"""

import random

import torch
from torch import nn

OUTLIER = 60


class Collator:
    """Pads to the longest document so far."""

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, documents: list[list[int]]) -> torch.Tensor:
        self.longest = max(self.longest, *map(len, documents))
        padded = torch.zeros(len(documents), self.longest, dtype=torch.long)
        for row, document in zip(padded, documents, strict=True):
            row[: len(document)] = torch.tensor(document)
        return padded


class Tagger(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(dim, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(tokens), src_key_padding_mask=tokens == 0))


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    model, collate = Tagger(), Collator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(2000):
        lengths = [random.randint(24, 32) for _ in range(4)]
        if step == OUTLIER:
            lengths[0] = 1400
        tokens = collate([[random.randint(1, 255) for _ in range(n)] for n in lengths])
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
