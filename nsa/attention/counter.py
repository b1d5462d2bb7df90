"""A count of the attention implementations that ran, and of those for which another stood in."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BackendUse:
    """Calls so far in this process by backend, and fallbacks by "wanted -> used: reason"."""

    calls: dict[str, int]
    fallbacks: dict[str, int]


class BackendCounter:
    """Counts calls and fallbacks; any thread may count or read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()

    def called(self, backend: str) -> None:
        """Count a call that `backend` answered."""
        with self._lock:
            self._calls[backend] += 1

    def fell_back(self, wanted: str, used: str, reason: str) -> None:
        """Count a call that fell back from `wanted` to `used`."""
        with self._lock:
            self._fallbacks[f"{wanted} -> {used}: {reason}"] += 1

    def snapshot(self) -> BackendUse:
        """The counts so far."""
        with self._lock:
            return BackendUse(calls=dict(self._calls), fallbacks=dict(self._fallbacks))


COUNTER = BackendCounter()
