"""Numbers that a GPU computes, read once it has come to them: nobody waits for a device here."""

from __future__ import annotations

import torch

from nsadiag.worker.probes.correctness.invariants.checksums import is_captured


class Later:
    """One number on its way to the CPU."""

    def __init__(self, number: torch.Tensor) -> None:
        with torch.no_grad():
            self._here = number.detach().to("cpu", non_blocking=True)  # into pinned memory
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(number.device))

    def has_come(self) -> bool:
        return bool(self._copied.query())

    def value(self) -> float:
        return float(self._here)


def later(number: torch.Tensor) -> Later | None:
    """It, where it lies on a GPU of CUDA's that records no graph."""
    return Later(number) if number.device.type == "cuda" and not is_captured() else None
