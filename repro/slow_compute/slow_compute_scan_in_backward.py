"""The forward of a recurrence is one fused call, and its backward a loop over time in Python.

Modelled on linear recurrences whose forward somebody made fast (a cumulative sum) and whose hand-written backward
was left as in the paper. A step takes seconds, nearly all of them in backward: the autograd graph is small, the
loss falls, and there is no step that was ever faster.

On plain python: a log line every few seconds.

Promise:
  launch: python
  options: [--timeout, "45"]
  outcome: slow
  class: slow_compute
  guilty_ranks: [0]
  code: ["carried = grad[:, t] + decay * carried", "given[:, t] = carried", "for t in reversed(range(grad.shape[1])):"]
"""

import torch
from torch import nn


class Recurrence(torch.autograd.Function):
    """h[t] = decay h[t - 1] + x[t]."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, decay: float) -> torch.Tensor:
        ctx.decay = decay
        powers = decay ** torch.arange(x.shape[1], dtype=x.dtype)
        return torch.cumsum(x / powers[:, None].clamp(min=1e-30), dim=1) * powers[:, None]

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        given, decay = torch.empty_like(grad), ctx.decay
        carried = torch.zeros_like(grad[:, 0])
        for t in reversed(range(grad.shape[1])):
            carried = grad[:, t] + decay * carried
            given[:, t] = carried
        return given, None


class Model(nn.Module):
    def __init__(self, dim: int = 8, layers: int = 12) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for mix in self.mix:
            x = torch.tanh(mix(Recurrence.apply(x, 0.9999)))
        return x


def main() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(200):
        x = torch.randn(2, 16384, 8)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
