"""Not hung, slow: the model walks the sequence token by token, and backward walks it all again.

Modelled on kyegomez/zeta #220 ("why is the backpropagation calculation so slow": a Python scan, length
1024) and on the reports this project began with, where every timeout was called a hang. One step
builds some 500,000 autograd nodes, and backward visits them in C++ without a word. It completes.

On plain python: a log line every half minute or so; the twenty steps would take ten minutes.

Promise:
  launch: python
  options: [--timeout, "60"]
  outcome: slow
  class: slow_compute
  guilty_ranks: [0]
  code: ["state = decay", "outputs.append(", "for t in range(", "loss.backward()"]
"""

import time

import torch
from torch import nn


class LinearAttention(nn.Module):
    """Gated linear attention with a matrix state a head, updated one token after the other."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.gate = nn.Linear(dim, heads)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, dim = x.shape
        x = self.norm(x)
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).unbind(dim=2)
        gate = torch.sigmoid(self.gate(x))
        state = x.new_zeros(b, self.heads, dim // self.heads, dim // self.heads)
        outputs = []
        for t in range(n):
            decay = gate[:, t, :, None, None]
            state = decay * state + (1 - decay) * k[:, t, :, :, None] * v[:, t, :, None, :]
            outputs.append((q[:, t, :, None, :] @ state).reshape(b, dim))
        return self.out(torch.stack(outputs, dim=1))


class LanguageModel(nn.Module):
    def __init__(self, vocab: int = 256, dim: int = 64, layers: int = 12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(LinearAttention(dim, heads=4) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        start = time.perf_counter()
        tokens = torch.randint(256, (1, 2049), device=device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f} took {time.perf_counter() - start:.1f} s", flush=True)
