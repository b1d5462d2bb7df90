"""Each step is slower than the last, because each one registers the gradient logger once more.

Modelled on pytorch/pytorch #191191: a hook registered again on every call, an unbounded list of hooks,
a backward that grows linearly with the step. Nothing is leaked that a memory profile would show, and a
profile of time shows the hook, not the line that registers it.

On plain python: completes with exit code 0 in about 20 s; the last step takes many times the first.

Promise:
  launch: python
  outcome: slow
  class: slow_compute
  guilty_ranks: [0]
  code: "parameter.register_hook("
"""

import time
from collections import defaultdict
from functools import partial

import torch
from torch import nn


class GradientLogger:
    """Keeps each parameter's gradient spread, for the histogram page of the dashboard."""

    def __init__(self) -> None:
        self.spread = defaultdict(list)

    def watch(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.register_hook(partial(self.note, name))

    def note(self, name: str, gradient: torch.Tensor) -> None:
        self.spread[name].append(float(gradient.std()))


def build_model(dim: int = 256, layers: int = 6) -> nn.Module:
    blocks = (nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU()) for _ in range(layers))
    return nn.Sequential(*blocks, nn.Linear(dim, 16))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    logger = GradientLogger()
    for step in range(160):
        start = time.perf_counter()
        logger.watch(model)
        batch = torch.randn(64, 256, device=device)
        loss = nn.functional.cross_entropy(model(batch), batch[:, :16].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took_ms = 1e3 * (time.perf_counter() - start)
        print(f"step {step} loss {loss.item():.4f} took {took_ms:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
