"""SIGUSR1 in the middle of a long backward: the handler runs when backward is over, and so do all lines of the hooks.

Modelled on the reports this project began with: "unresponsive to SIGUSR1", "hooks never fire". Python runs signal
handlers between two of its own instructions, and backward is one call into C++ of many seconds; hooks do fire all
along, but what they noted was printed by the line after backward. Nothing here is stuck, and nothing is lost.

On plain python: "asked" at once, "answered, N s late" and the hooks' report when backward is through; exit code 0.

Promise:
  launch: python
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import signal
import sys
import threading
import time

import torch
from torch import nn

WITH_HOOKS = "--no-hooks" not in sys.argv


class Recurrence(nn.Module):
    """h <- tanh(A h + x), one token after the other."""

    def __init__(self, dim: int):
        super().__init__()
        self.recur = nn.Parameter(torch.eye(dim) / 2)
        self.inner, self.out = nn.Linear(dim, dim), nn.Linear(dim, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(x[0])
        for token in self.inner(x):
            h = torch.tanh(h @ self.recur + token)
        return self.out(h)


def ask_for_stacks(after_s: float) -> None:  # what an impatient person does from another terminal
    time.sleep(after_s)
    asked_at.append(time.perf_counter())
    print("asked", flush=True)
    os.kill(os.getpid(), signal.SIGUSR1)


def main() -> None:
    model = Recurrence(512)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    arrived: dict[str, float] = {}
    for name, parameter in model.named_parameters() if WITH_HOOKS else ():
        parameter.register_hook(lambda _, name=name: arrived.update({name: time.perf_counter()}))
    signal.signal(
        signal.SIGUSR1, lambda *_: print(f"answered, {time.perf_counter() - asked_at[-1]:.1f} s late")
    )
    for step in range(2):
        arrived.clear()
        loss = model(torch.randn(1000, 32, 512)).square().mean()
        began = time.perf_counter()
        threading.Thread(target=ask_for_stacks, args=(1.0,)).start()
        loss.backward()
        took = time.perf_counter() - began
        optimizer.step()
        optimizer.zero_grad()
        for name, at in arrived.items():
            print(
                f"gradient of {name} {at - began:.1f} s after backward began, {began + took - at:.1f} s before its end"
            )
        if WITH_HOOKS and len(arrived) != len(list(model.parameters())):
            raise RuntimeError(f"step {step}: only {sorted(arrived)} got a gradient")
        print(f"step {step} loss {loss.item():.4f}, backward {took:.1f} s", flush=True)


if __name__ == "__main__":
    asked_at: list[float] = []
    main()
