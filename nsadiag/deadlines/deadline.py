"""A deadline that all parts of a wait share."""

from __future__ import annotations

import time


class Deadline:
    """A moment that a wait may not outlast, however many reads and writes it consists of."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left. Raises TimeoutError where there are none."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no answer within {self.seconds:g} s")
        return left

    def has_passed(self) -> bool:
        return time.monotonic() >= self._at
