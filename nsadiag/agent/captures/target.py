"""The target of a capture: a rank, or a node."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsadiag.agent.captures.failure import CaptureError, NotApplicable
from nsadiag.evidence.layout import CaptureDir

if TYPE_CHECKING:
    from nsadiag.agent.captures.worker_server import WorkerServer

__all__ = ["CaptureError", "NodeTarget", "NotApplicable", "Target"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One rank's process, and where its evidence goes."""

    pid: int
    directory: CaptureDir
    socket: Path | None  # of torch's worker server
    may_pause: bool = True  # for the milliseconds that an exact stack takes
    with_locals: bool = False  # values of variables, which the user must have asked for

    @functools.cached_property
    def server(self) -> WorkerServer:
        """One for all that is asked in a look, so that a server found silent is not waited for again."""
        from nsadiag.agent.captures.worker_server import WorkerServer  # with a client of HTTP

        return WorkerServer(self.socket)


@dataclass(frozen=True, kw_only=True)
class NodeTarget:
    """A machine of the job: asked once, however many ranks it has."""

    directory: CaptureDir
    pids: tuple[int, ...]  # of the ranks on it
