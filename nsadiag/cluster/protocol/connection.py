"""One connection of the side channel, over a socket that never blocks: bytes in and out, frames once both have greeted."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from typing import Any

from nsadiag.cluster.protocol.wire import (
    PROOF_BYTES,
    ClientGreeting,
    Frame,
    Frames,
    Refused,
    ServerGreeting,
    WrongToken,
)

READ_BYTES = 256 * 1024
MOST_WAITING = 8 * 1024 * 1024  # of bytes that the other side does not take


class Connection:
    """Speaks first by `greeting`; `node_rank` is known, and `send` allowed, from then on."""

    def __init__(self, sock: socket.socket, greeting: ServerGreeting | ClientGreeting) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self._greeting = sock, greeting
        self.began = time.monotonic()
        self.frames: Frames | None = None
        self.node_rank: int | None = None
        self._outbox = bytearray(getattr(greeting, "outgoing", b""))
        self.has_spoken = False

    @property
    def waiting(self) -> int:
        """Bytes that are not sent yet."""
        return len(self._outbox)

    def send(self, note: dict[str, Any], blob: bytes = b"") -> None:
        """Puts a frame in line. Raises Refused where the other side has not taken what it was sent before."""
        assert self.frames is not None
        if len(self._outbox) > MOST_WAITING:
            raise Refused("an agent that does not read")
        self._outbox += self.frames.pack(note, blob)

    def flush(self) -> None:
        """Sends what the kernel has room for. Raises OSError."""
        while self._outbox:
            try:
                sent = self.sock.send(memoryview(self._outbox)[:READ_BYTES])
            except (BlockingIOError, InterruptedError):
                return
            del self._outbox[:sent]

    def receive(self) -> list[Frame]:
        """Frames that are complete. Raises OSError, also where the other side has closed, and Refused."""
        try:
            data = self.sock.recv(READ_BYTES if self.frames else 4096)
        except (BlockingIOError, InterruptedError):
            return []
        if not data:
            raise ConnectionResetError("closed by the other side")
        self.has_spoken = True
        if self.frames is None:
            data = self._greet(data)
        return list(self.frames.feed(data)) if self.frames and data else []

    def _greet(self, data: bytes) -> bytes:
        """The received data that followed the greeting."""
        if isinstance(self._greeting, ServerGreeting):
            try:
                done = self._greeting.feed(data)
            except WrongToken:
                self._outbox += secrets.token_bytes(PROOF_BYTES)
                with contextlib.suppress(OSError):
                    self.flush()
                raise
            if done is None:
                return b""
            self.node_rank, answer, self.frames, rest = done
            self._outbox += answer
            return rest
        # The greeting has two parts, and what was read may hold both.
        answer, self.frames, rest = self._greeting.feed(data)
        self._outbox += answer
        return rest

    def close(self) -> None:
        self.sock.close()
