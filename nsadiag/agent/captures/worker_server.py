"""Asks torch's C++ worker server, over its unix socket; it answers while the rank's GIL is held."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

from nsadiag.agent.captures.target import CaptureError

TIMEOUT_S = 4.0
MAX_ANSWER = 256 * 2**20


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


def ask(path: Path | None, handler: str) -> bytes:
    """The answer of one handler. Raises CaptureError if there is no server, or no answer in time."""
    if path is None or not path.exists():
        raise CaptureError("the rank has no worker server")
    connection = _UnixConnection(path)
    try:
        connection.request("POST", f"/handler/{handler}")
        response = connection.getresponse()
        body = response.read(MAX_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        raise CaptureError(f"worker server, {handler}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise CaptureError(
            f"worker server, {handler}: HTTP {response.status} {body[:200].decode(errors='replace')}"
        )
    return body
