"""HTTP with one deadline for look-up, connection, request and answer."""

from __future__ import annotations

import http.client
import os
import socket
import struct
import urllib.request
from pathlib import Path
from typing import Any

from nsadiag.deadlines.calls import call
from nsadiag.deadlines.deadline import Deadline
from nsadiag.deadlines.sockets import Socket

MOST_ANSWER = 1024


class UnixHttp(http.client.HTTPConnection):  # noqa: TID251 - with a deadline
    """HTTP over a unix socket of our own user's, or root's."""

    def __init__(self, path: Path, deadline: Deadline) -> None:
        super().__init__("localhost")
        self._path, self._deadline = path, deadline

    def connect(self) -> None:
        self.sock = Socket(socket.AF_UNIX, self._deadline)
        self.sock.connect(str(self._path))
        peer = struct.unpack("3i", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if peer != 0 and os.geteuid() not in (0, peer):
            raise PermissionError("another user answers there")


class _Moved(urllib.request.HTTPRedirectHandler):
    """No redirect is followed: a POST would become a GET without the message, to an address of the answer's."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_Moved)


def post(address: str, body: bytes, content_type: str, seconds: float) -> None:
    """Sends the body, through a proxy where the environment names one. Raises OSError, and TimeoutError at the limit."""
    request = urllib.request.Request(address, body, {"Content-Type": content_type}, method="POST")

    def exchange() -> None:
        with _OPENER.open(request, timeout=seconds) as answer:
            answer.read(MOST_ANSWER)

    call(exchange, seconds)
