"""Optimizer steps: when each began and ended, and how many were completed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

from nsadiag.evidence.blackbox import Kind, Phase
from nsadiag.worker import runtime
from nsadiag.worker.probes import budget
from nsadiag.worker.probes.patch import harmless

# Only the first optimizer counts steps: a job with two of them still has one loop.
_counting: weakref.ref[Any] | None = None


@harmless
def _before(optimizer: Any, *_: Any) -> None:
    rank = runtime.ensure_rank()
    if rank is not None:
        rank.emit(Kind.OPTIMIZER, Phase.BEGIN, rank.names(type(optimizer).__name__))


@harmless
def _after(optimizer: Any, *_: Any) -> None:
    global _counting
    rank = runtime.current()
    if rank is None:
        return
    rank.emit(Kind.OPTIMIZER, Phase.END, rank.names(type(optimizer).__name__))
    if _counting is None or _counting() is None:
        _counting = weakref.ref(optimizer)
    if _counting() is optimizer:
        rank.step_ended()
        budget.step_ended()


@contextlib.contextmanager
def optimizer() -> Iterator[None]:
    """Global hooks of torch.optim: they see optimizers made before and after."""
    from torch.optim import optimizer as optim

    before = optim.register_optimizer_step_pre_hook(_before)
    after = optim.register_optimizer_step_post_hook(_after)
    try:
        yield
    finally:
        before.remove()
        after.remove()
