"""A rank's stacks in passing, without a pause of it: by py-spy, or by the rank's own word where that may not look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nsadiag.agent.captures.failure import Refused
from nsadiag.agent.captures.python.py_spy import nonblocking_stacks
from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.captures.worker_server import WorkerServer
from nsadiag.evidence.documents.python_stacks import Threads
from nsadiag.evidence.stacks import from_faulthandler

ANSWER_S = 1.0


class NonblockingStacks:
    """Remembers into whom py-spy may not look, and whose server is silent: each question costs that one a thread."""

    def __init__(self, socket_of: Callable[[int], Path] | None = None) -> None:
        """`socket_of` says where a rank's worker server listens."""
        self._socket_of = socket_of
        self._refused: set[int] = set()  # pids
        self._silent: set[int] = set()

    def at(self, rank: int, pid: int, *, with_locals: bool = False) -> Threads:
        """All threads; of the rank's own word without variables. Raises CaptureError where neither tells."""
        try:
            if pid not in self._refused:
                return nonblocking_stacks(pid, with_locals=with_locals)
        except Refused:
            # Not where py-spy was only late: the rank pays for its own word with the interpreter lock.
            if self._socket_of is None or pid in self._silent:
                raise
        try:
            found = self._by_server(rank)
        except CaptureError:
            self._silent.add(pid)
            self._refused.discard(pid)
            raise
        self._refused.add(pid)
        return found

    def shows_variables(self, pid: int) -> bool:
        return pid not in self._refused

    def _by_server(self, rank: int) -> Threads:
        """Stacks from torch's server, which takes the interpreter lock: safe while the rank runs."""
        assert self._socket_of is not None
        text = WorkerServer(self._socket_of(rank)).ask("dump_traceback", timeout_s=ANSWER_S)
        return from_faulthandler(text.decode(errors="replace"))
