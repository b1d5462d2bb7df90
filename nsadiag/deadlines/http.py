"""HTTP with one deadline for look-up, connection, request and answer."""

from __future__ import annotations

import http.client
import socket
import urllib.request
from pathlib import Path

from nsadiag.deadlines.calls import call
from nsadiag.deadlines.deadline import Deadline
from nsadiag.deadlines.sockets import Socket

MOST_ANSWER = 1024


class UnixHttp(http.client.HTTPConnection):  # noqa: TID251 - with a deadline
    """HTTP over a unix socket."""

    def __init__(self, path: Path, deadline: Deadline) -> None:
        super().__init__("localhost")
        self._path, self._deadline = path, deadline

    def connect(self) -> None:
        self.sock = Socket(socket.AF_UNIX, self._deadline)
        self.sock.connect(str(self._path))


def post(address: str, body: bytes, content_type: str, seconds: float) -> None:
    """Sends the body, through a proxy where the environment names one. Raises OSError, and TimeoutError at the limit."""
    request = urllib.request.Request(address, body, {"Content-Type": content_type}, method="POST")

    def exchange() -> None:
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: TID251 - with a deadline
            answer.read(MOST_ANSWER)

    call(exchange, seconds)
