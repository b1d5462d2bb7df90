"""Sockets on which a whole exchange has a deadline, where `settimeout` limits each read and write anew."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

from nsadiag.deadlines.calls import call
from nsadiag.deadlines.deadline import Deadline

READ_BYTES = 65536
CONNECT_S = 1.0  # on a cluster's network; whoever drops packets answers no later either


class Socket(socket.socket):
    """Raises TimeoutError in whatever is under way at the deadline. Files made of it (`makefile`) keep it too."""

    def __init__(self, family: int, deadline: Deadline) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._deadline = deadline

    def connect(self, address: Any) -> None:
        self.settimeout(min(self._deadline.left(), CONNECT_S))
        super().connect(address)

    def recv(self, *arguments: Any) -> bytes:
        self.settimeout(self._deadline.left())
        return super().recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(self._deadline.left())
        return super().recv_into(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self.settimeout(self._deadline.left())
        super().sendall(*arguments)

    def chunks(self) -> Iterator[bytes]:
        """All that comes until the other side closes."""
        while chunk := self.recv(READ_BYTES):
            yield chunk


def connect(host: str, port: int, deadline: Deadline) -> Socket:
    """A TCP connection to the first of the host's addresses that takes it, the look-up included. Raises OSError."""
    found = call(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), deadline.left())
    failure: OSError = ConnectionRefusedError(f"{host} has no address")
    for family, _, _, _, address in found:
        connection = Socket(family, deadline)
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise failure
