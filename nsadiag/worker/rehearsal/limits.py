"""Limits of a rank in a rehearsal: its share of the memory, and no connection to other hosts."""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import Any

from nsadiag.evidence.rehearsal import MEMORY, NETWORK
from nsadiag.worker.interruptions import tolerated

LOCAL = ("127.", "::1", "localhost")


def install() -> None:
    """For this process and its children. A limit of the person's that is lower stays."""
    share_memory()
    if os.environ.get(NETWORK) == "refused":
        for name in ("connect", "connect_ex"):
            _refuse(name)


def share_memory() -> None:
    """The limit of one of the node's ranks."""
    total = os.environ.get(MEMORY, "")
    if total.isdigit():
        share = int(total) // max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)
        with tolerated(OSError, ValueError):
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (share, hard))


def _refuse(name: str) -> None:
    plain = getattr(socket.socket, name)

    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not str(address[0]).startswith(LOCAL):
            raise OSError(errno.ENETUNREACH, "the network is cut off in a rehearsal")
        return plain(self, address)

    setattr(socket.socket, name, connect)
