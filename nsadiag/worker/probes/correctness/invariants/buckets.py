"""Gradients of DDP's buckets before a communication hook of the user's reduces them: afterwards they lie in the parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from nsadiag.worker.place import user_place
from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.correctness.invariants.checksums import checksums
from nsadiag.worker.probes.correctness.invariants.journal import current, journal
from nsadiag.worker.probes.patch import harmless, replaced, stands_for

MOST_MADE = 8  # gradients of an optimizer that are read, here and after a backward


@harmless
def _given(hook: Any, place: str, bucket: Any) -> None:
    if current() is None or not (journal.valued and journal.looking):
        return
    read = {id(p): name for _, optimizer in roles.ours() for name, p in roles.held_by(optimizer)[:MOST_MADE]}
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    named = [(read[id(parameter)], gradient) for parameter, gradient in pairs if id(parameter) in read]
    name = getattr(hook, "__qualname__", type(hook).__name__)
    journal.note("bucket", place=place, name=name, values=checksums(named))


def _around_hook(hook: Any, place: str) -> Any:
    @stands_for(hook)
    def observed(state: Any, bucket: Any) -> Any:
        _given(hook, place, bucket)
        return hook(state, bucket)

    return observed


def _around_register(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def register_comm_hook(self: Any, state: Any, hook: Any) -> Any:
        return call(self, state, _around_hook(hook, user_place()) if callable(hook) else hook)

    return register_comm_hook


@contextlib.contextmanager
def buckets() -> Iterator[None]:
    """Around communication hooks that are registered with DDP."""
    around = _around_register(DistributedDataParallel.register_comm_hook)
    with replaced(DistributedDataParallel, "register_comm_hook", around):
        yield
