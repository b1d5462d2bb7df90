"""Steps become many times slower once a cache is full: each look-up then throws out what the next one asks for.

Modelled on reports of training that "suddenly" slows down in the second thousand of steps: an LRU cache smaller
than the set that is walked in order has a hit rate of nought. Nothing grows: there is one jump, for good.

On plain python: fifty steps in no time, then one every fraction of a second.

Promise:
  launch: python
  options: [--timeout, "40"]
  outcome: slow
  class: slow_compute
  guilty_ranks: [0]
  code: ["batch = torch.stack([features(", "total = (total * 31 + ord(letter)) % 65521", "for letter in text:", "return torch.tensor(values)"]
"""

from functools import lru_cache

import torch
from torch import nn

ROOM = 96
WORDS = [f"{'abcdefgh'[n % 8]}{n:05d}" * 600 for n in range(128)]


@lru_cache(maxsize=ROOM)
def features(text: str) -> torch.Tensor:
    """Rolling sums over the letters of a document."""
    total, values = 0, []
    for letter in text:
        total = (total * 31 + ord(letter)) % 65521
        if len(values) < 32:
            values.append(total / 65521)
    return torch.tensor(values)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for word in WORDS[:ROOM]:
        features(word)
    for step in range(2000):
        # The curriculum begins with a part of the documents, and goes on to all of them.
        known = WORDS[:64] if step < 200 else WORDS
        first = step * 32 % len(known)
        batch = torch.stack([features(known[(first + n) % len(known)]) for n in range(32)])
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
