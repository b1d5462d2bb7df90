"""Waiters that will never be woken: the largest set that only its own members could wake."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Needs(Generic[K]):
    """Everything that a waiter waits for: all of it, so that one that never comes is enough to hold it; or any of it."""

    targets: Collection[K]
    every: bool = True

    def is_held(self, blocked: Collection[K]) -> bool:
        """Whether none but members of `blocked` could wake it; whoever waits for nothing can wake itself."""
        held = [target in blocked for target in self.targets]
        return any(held) if self.every else bool(held) and all(held)


def never_woken(waiters: Mapping[K, Needs[K]], never: Collection[K] = ()) -> set[K]:
    """`never`, and the largest set of waiters each of which is held by the set itself: whoever is not is taken out, until nobody is."""
    blocked = {*never, *waiters}
    while woken := {key for key in blocked.difference(never) if not waiters[key].is_held(blocked)}:
        blocked -= woken
    return blocked
