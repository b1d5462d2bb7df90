"""Connections that have not proven the run's token: few at a time, each for a few seconds, whoever fills the port."""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import time
from collections import Counter

from nsadiag.cluster.protocol.connection import Connection
from nsadiag.cluster.protocol.wire import ServerGreeting

GREETING_S = 5.0  # from the connection to the proof, however many bytes come meanwhile
AT_ONCE = 64  # before those who have spoken are heard
MOST, LEAST = 128, 8  # that are silent, and as many that have said something
PORTS = 2  # the meeting's and the side channel's
OTHER_FILES = 256  # that the command, its job and the meeting have open
ABORTED = (errno.ECONNABORTED, errno.EPROTO)


class Strangers:
    """Accepts whoever connects. Of too many the oldest has to go; those who say nothing do not displace those who speak."""

    def __init__(
        self, listener: socket.socket, token: str, selector: selectors.BaseSelector, nnodes: int
    ) -> None:
        listener.setblocking(False)
        self._listener, self._token, self._selector = listener, token, selector
        self._silent: dict[Connection, None] = {}
        self._speaking: dict[Connection, None] = {}
        self._most = _room(nnodes) + nnodes  # all nodes of a large job come at the same moment
        self.refused: Counter[str] = Counter()
        selector.register(listener, selectors.EVENT_READ)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._silent or connection in self._speaking

    def accept(self) -> None:
        """Takes those who wait at the port, some at a time."""
        for _ in range(AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in ABORTED:
                    continue
                # No descriptor is left for the one who waits: another stranger's will do.
                self._make_room(self._speaking, least=0)
                self._make_room(self._silent, least=0)
                return
            self._make_room(self._silent, least=self._most - 1)
            connection = Connection(sock, ServerGreeting(self._token))
            self._silent[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)
            with contextlib.suppress(OSError):
                connection.flush()

    def note(self, connection: Connection) -> None:
        """Call when something has come from a connection."""
        if connection.has_spoken and connection in self._silent:
            del self._silent[connection]
            self._make_room(self._speaking, least=self._most - 1)
            self._speaking[connection] = None

    def welcome(self, connection: Connection) -> None:
        """It is none any more."""
        self._silent.pop(connection, None)
        self._speaking.pop(connection, None)

    def drop(self, connection: Connection, why: str | None) -> None:
        """Closes it; `why` counts it among the refused."""
        if why is not None:
            self.refused[why] += 1
        self.welcome(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.close()

    def expire(self) -> None:
        """Closes to those who did not say in time who they are."""
        now = time.monotonic()
        for held in (self._silent, self._speaking):
            for connection in [c for c in held if now - c.began > GREETING_S]:
                self.drop(connection, "one that did not say who it is")

    def _make_room(self, held: dict[Connection, None], *, least: int) -> None:
        if len(held) > least:
            self.drop(next(iter(held)), "one of too many that did not say who they are")


def _room(nnodes: int) -> int:
    """Their number, of either kind and at each port, within the limit of open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST
    return min(max((limit - nnodes - OTHER_FILES) // (2 * PORTS), LEAST), MOST)
