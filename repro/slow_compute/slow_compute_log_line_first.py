"""The last line of the log is "forward completed", and the job stands in forward: the line is printed before it.

Modelled on the reports this project began with, where that line proved for days that backward was at fault. The
forward of this model goes through the sequence token by token in Python, and takes minutes.

On plain python: "forward completed", then silence at full CPU.

Promise:
  launch: python
  options: [--timeout, "40"]
  outcome: slow
  class: slow_compute
  guilty_ranks: [0]
  code: ["for t in range(", "error = v[:, t] -", "state = state +", "reads.append("]
"""

import torch
from torch import nn


class DeltaRule(nn.Module):
    """Each token writes the error of what its key recalls; its query reads."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.key, self.value, self.query = (nn.Linear(dim, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        k, v, q = torch.tanh(self.key(h)), self.value(h), torch.tanh(self.query(h))
        state, reads = torch.zeros_like(v[:, 0]), []
        for t in range(x.shape[1]):
            error = v[:, t] - state * k[:, t]
            state = state + 0.1 * error * k[:, t]
            reads.append(state * q[:, t])
        return x + self.out(torch.stack(reads, dim=1))


class Tagger(nn.Module):
    def __init__(self, dim: int = 32, layers: int = 48):
        super().__init__()
        self.embed = nn.Embedding(512, dim)
        self.layers = nn.ModuleList(DeltaRule(dim, 8) for _ in range(layers))
        self.tags = nn.Linear(dim, 17)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.tags(x)


def debug(message: str) -> None:
    print(f"[debug] {message}", flush=True)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Tagger().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(100):
        words, tags = torch.randint(512, (1, 8192), device=device), torch.randint(17, (8192,), device=device)
        debug(f"step {step}: forward completed")
        scores = model(words)
        loss = nn.functional.cross_entropy(scores[0], tags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debug(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
