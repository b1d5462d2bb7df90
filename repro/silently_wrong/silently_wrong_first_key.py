"""Attention of one query at a time with `is_causal=True`: each looks at the first key alone, and nothing says so.

Modelled on the reports this project began with, whose window and compressed branches trained nothing, and on
pytorch/pytorch #115111: the causal mask of scaled_dot_product_attention is aligned to the upper left, so that a
single query sees one key. A softmax over one key is 1 whatever the query is: queries and keys get no gradient.

On plain python: ten steps, exit code 0. With --every-key, the control, the mask is left out.

Promise:
  launch: python
  options: [--probes, "light,parity"]
  outcome: wrong
  class: silently_wrong (dead_gradients)
  guilty_ranks: [0]
  parameter: layers.0.query.weight
"""

import sys
from functools import partial

import torch
from torch import nn

IS_CAUSAL = "--every-key" not in sys.argv


class StepwiseAttention(nn.Module):
    """As in decoding: the cache grows by one token, and the newest query attends to it."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, dim = x.shape
        h = self.norm(x)
        q, k, v = (
            f(h).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        attend = partial(nn.functional.scaled_dot_product_attention, is_causal=IS_CAUSAL)
        rows = [attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1]) for t in range(n)]
        return x + self.out(torch.cat(rows, dim=2).transpose(1, 2).reshape(b, n, dim))


class CopyModel(nn.Module):
    def __init__(self, dim: int = 32, layers: int = 2):
        super().__init__()
        self.embed, self.places = nn.Embedding(64, dim), nn.Embedding(48, dim)
        self.layers = nn.ModuleList(StepwiseAttention(dim, heads=4) for _ in range(layers))
        self.head = nn.Linear(dim, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = CopyModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(10):
        half = torch.randint(64, (16, 24), device=device)
        tokens = torch.cat([half, half], dim=1)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
