"""Descriptors of ours in a rank: few, with numbers that programs leave alone, and looked at before they are trusted.

Programs close what they do not know (`os.closerange`, `closefrom`, daemons) and are then given the same numbers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from nsadiag.worker.interruptions import pass_on, tolerated

HIGHEST = 1024  # select() takes none above
ROOM = 24  # numbers for ours
LEFT_ALONE = 3  # standard streams


class HeldFile:
    """A file of the rank's directory that is written to from C, by its descriptor alone."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.number = _opened_high(path)
        self._identity = _identity(self.number)

    def is_ours(self) -> bool:
        """False where the job closed the descriptor, whoever has the number now."""
        return _identity(self.number) == self._identity

    def close(self) -> None:
        """Leaves a number alone that is somebody else's by now."""
        if self.is_ours():
            os.close(self.number)


def _opened_high(path: Path) -> int:
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _lowest())
    finally:
        os.close(low)


def _lowest() -> int:
    """The lowest number that ours get: near the top of what the limit allows."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    limit = HIGHEST if limit == resource.RLIM_INFINITY else min(limit, HIGHEST)
    return max(limit - ROOM, limit * 3 // 4, LEFT_ALONE)


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError as error:
        pass_on(error)
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def opened_high() -> Iterator[None]:
    """Whatever is opened in the block, by whoever, gets a high number: all lower ones are taken meanwhile."""
    taken: list[int] = []
    try:
        with tolerated(OSError):
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            while taken[-1] < _lowest() - 1:
                taken.append(os.dup(taken[0]))
        yield
    finally:
        for number in taken:
            os.close(number)
