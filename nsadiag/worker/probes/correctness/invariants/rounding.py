"""Elements of parameters in 16 bits that no update changes, although they have a gradient at every step that is looked at."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from nsadiag.worker.probes.correctness.invariants.checksums import is_captured, own_part
from nsadiag.worker.probes.correctness.invariants.journal import journal

HALVES = (torch.bfloat16, torch.float16)
SAMPLED = 256  # elements of one tensor, spread over it
MOST = 40  # tensors
OWN = "torch.optim."  # other optimizers may round at random, or keep what was rounded off


@dataclass
class _Sample:
    """Elements of a parameter as they were first, and which of them have had a gradient and kept their value since."""

    parameter: weakref.ref[torch.Tensor]
    first: torch.Tensor
    graded: torch.Tensor
    still: torch.Tensor


@dataclass
class Rounding:
    """The samples of each optimizer, by its number."""

    _samples: dict[int, list[_Sample]] = field(default_factory=dict)

    def note(self, number: int, optimizer: Any, held: list[tuple[str, torch.Tensor]]) -> None:
        """Before a step of the optimizer."""
        if not type(optimizer).__module__.startswith(OWN) or is_captured():
            return
        with torch.no_grad():
            if number not in self._samples:
                halves = [p for _, p in held if p.dtype in HALVES and own_part(p) is not None]
                self._samples[number] = [_sample(p) for p in halves[:MOST]]
            living = [sample for sample in self._samples[number] if _looked_at(sample)]
            if not living:
                return
            here = living[0].first.device
            counts = torch.stack(
                [torch.stack((s.graded.sum(), (s.graded & s.still).sum())).to(here) for s in living]
            )
            graded, still = counts.sum(dim=0).tolist()
        of = sum(s.first.numel() for s in living)
        journal.note("rounding", place="", optimizer=number, of=of, held=graded, graded=still)

    def forget(self) -> None:
        self._samples.clear()


rounding = Rounding()


def _sample(parameter: torch.Tensor) -> _Sample:
    first = _spread(parameter).clone()
    yes = torch.ones_like(first, dtype=torch.bool)
    return _Sample(parameter=weakref.ref(parameter), first=first, graded=yes, still=yes.clone())


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    own = own_part(tensor)
    flat = own.reshape(-1) if own is not None else tensor.new_empty(0)
    return flat[:: max(-(-flat.numel() // SAMPLED), 1)]


def _looked_at(sample: _Sample) -> bool:
    """Whether its parameter can be compared, and has been now."""
    parameter = sample.parameter()
    if parameter is None or parameter.grad is None or parameter.dtype != sample.first.dtype:
        return False
    now, gradient = _spread(parameter), _spread(parameter.grad)
    if not now.shape == gradient.shape == sample.first.shape or now.device != sample.first.device:
        return False
    sample.still &= now == sample.first
    sample.graded &= gradient != 0
    return True
