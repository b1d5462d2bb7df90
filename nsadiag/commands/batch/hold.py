"""One job at a time writes into a cell's directory: its agents share a lock that the kernel frees when they have ended.

A driver that was killed leaves agents behind for some seconds, which still end their ranks and write what they know.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import time
from collections.abc import Iterator

from nsadiag.agent import interrupts
from nsadiag.errors import MachineError
from nsadiag.evidence.layout import RunDir, open_private

NAME = "agents.lock"
WAIT_S = 90.0  # more than an agent takes that nobody wants any more
TICK_S = 0.05
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextlib.contextmanager
def shared(cell: RunDir) -> Iterator[None]:
    """For an agent, as long as it may write there."""
    with _locked(cell, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def alone(cell: RunDir) -> Iterator[None]:
    """For who decides what becomes of the cell. Raises MachineError where somebody goes on writing."""
    with _locked(cell, fcntl.LOCK_EX) if cell.path.is_dir() else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _locked(cell: RunDir, kind: int) -> Iterator[None]:
    # For both kinds NFS wants it open for reading and writing.
    with open_private(cell.path / NAME, "a+b") as file:
        _take(file.fileno(), kind, cell)
        yield


def _take(descriptor: int, kind: int, cell: RunDir) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            interrupts.check()
            if time.monotonic() > deadline:
                raise MachineError(
                    f"an agent of an earlier nsadiag still writes into {cell.path}",
                    "end it on its node, then go on with --resume",
                ) from None
            time.sleep(TICK_S)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return  # a file system without locks: what was promised then is as little as it keeps
