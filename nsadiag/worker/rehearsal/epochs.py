"""Shorter epochs: the middle of what a DataLoader has is left out, its first and its last batches stay.

All ranks leave out a multiple of the same number, so that ranks with equally many batches keep equally many, and a rank that
has one more keeps one more. A difference of that very number is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from nsadiag.evidence.rehearsal import STEPS


def install() -> None:
    """Shorten epochs, if steps are limited. A loader over a stream, whose end nobody knows, stays as it is."""
    steps = int(os.environ.get(STEPS) or 0)
    plain = DataLoader._index_sampler.fget
    if not steps:
        return

    def index_sampler(self: DataLoader[Any]) -> Any:
        sampler = plain(self)
        return Shortened(sampler, steps) if hasattr(sampler, "__len__") else sampler

    DataLoader._index_sampler = property(index_sampler)


class Shortened:
    """A sampler without its middle."""

    def __init__(self, sampler: Any, steps: int) -> None:
        self._sampler, self._steps = sampler, steps

    def _skipped(self) -> int:
        return max(len(self._sampler) // self._steps - 1, 0) * self._steps

    def __len__(self) -> int:
        return len(self._sampler) - self._skipped()

    def __iter__(self) -> Iterator[Any]:
        head = (len(self) + 1) // 2
        last_skipped = head + self._skipped()
        for number, batch in enumerate(self._sampler):
            if number < head or number >= last_skipped:
                yield batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)
