"""A collator looks for near-duplicates in its batch by comparing every document with every other one.

Modelled on data pipelines that were written for batches of eight and are run with a thousand: the work grows with
the square of the batch. The model waits for its batch nearly all of the time; no step was ever faster.

On plain python: a log line every second or two, and a model that would take milliseconds.

Promise:
  launch: python
  options: [--timeout, "40"]
  outcome: slow
  class: slow_compute
  guilty_ranks: [0]
  code: ["for other in documents:", "shared = sum(a == b for a, b in zip(document, other))", "if document is not other and shared > 24:", "for document in documents:"]
"""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> list[int]:
        choose = random.Random(index)
        return [choose.randrange(256) for _ in range(32)]


def without_duplicates(documents: list[list[int]]) -> torch.Tensor:
    """Marks what is nearly another document of the batch."""
    weights = []
    for document in documents:
        twins = 0
        for other in documents:
            shared = sum(a == b for a, b in zip(document, other))
            if document is not other and shared > 24:
                twins += 1
        weights.append(1.0 / (1 + twins))
    return torch.tensor(documents, dtype=torch.float) / 256, torch.tensor(weights)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Documents(), batch_size=768, collate_fn=without_duplicates)
    for step, (batch, weights) in enumerate(loader):
        losses = nn.functional.mse_loss(model(batch), batch, reduction="none").mean(dim=1)
        loss = (losses * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
