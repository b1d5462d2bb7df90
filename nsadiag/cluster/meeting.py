"""The agents' meeting at node 0's port: each proves the token, says what it was started with, and hears where to go.

Node 0 closes it as soon as all are here. A connection that breaks costs nothing: the same hello gets the same answer.
"""

from __future__ import annotations

import random
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.cluster.protocol.connection import Connection
from nsadiag.cluster.protocol.hello import Hello, hello_of
from nsadiag.cluster.protocol.wire import ClientGreeting, Refused
from nsadiag.cluster.strangers import Strangers
from nsadiag.deadlines.deadline import Deadline

TICK_S = 0.2
CONNECT_S = 3.0
ANSWER_S = 10.0
AGAIN_S = (0.2, 1.0)  # a thousand nodes that were sent away do not come back at one moment
HELLO = "hello"
Decide = Callable[[Hello], dict[str, Any]]


class Meeting:
    """Node 0's end. `decide` has the answer to whoever has proven the token; called by `turn`."""

    def __init__(self, listener: socket.socket, token: str, nnodes: int, decide: Decide) -> None:
        self._listener, self._decide = listener, decide
        self._selector = selectors.DefaultSelector()
        self._strangers = Strangers(listener, token, self._selector, nnodes)

    @property
    def refused(self) -> dict[str, int]:
        return dict(self._strangers.refused)

    def turn(self, seconds: float) -> None:
        """Waits for so long, and hears who has come."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._strangers.accept()
            else:
                self._serve(key.data)
        self._strangers.expire()

    def _serve(self, connection: Connection) -> None:
        try:
            frames = connection.receive()
            self._strangers.note(connection)
            for note, _ in frames:
                hello = hello_of(note) if note.get("kind") == HELLO else None
                if hello is None or hello.node_rank != connection.node_rank:
                    raise Refused("an agent that says nothing of itself")
                connection.send(self._decide(hello))
            connection.flush()
        except Refused as error:
            self._strangers.drop(connection, str(error))
        except OSError:
            # One that has its answer closes, and is no stranger.
            self._strangers.drop(connection, "no agent of nsadiag" if connection.frames is None else None)
        except Exception as error:
            # Nobody who connects may end the meeting, whatever nobody has foreseen.
            self._strangers.drop(connection, repr(error))

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr] # all are sockets
        self._selector.close()


def ask(
    address: tuple[str, int], token: str, hello: Hello, deadline: Deadline, missed: Callable[[str], None]
) -> dict[str, Any]:
    """Node 0's answer. Raises Refused from who is no node 0 of this run, and TimeoutError when nobody has answered in time.

    Whatever goes wrong may be right the next time: node 0 may not have started, or may be busy with strangers. `missed` hears
    what it was.
    """
    while True:
        try:
            return _exchange(address, token, hello, Deadline(min(ANSWER_S, deadline.left())))
        except OSError as error:
            deadline.left()
            missed(error.strerror or str(error))
        time.sleep(min(random.uniform(*AGAIN_S), deadline.left()))


def _exchange(address: tuple[str, int], token: str, hello: Hello, deadline: Deadline) -> dict[str, Any]:
    """One connection. Raises OSError, TimeoutError and Refused."""
    interrupts.check()
    with (
        socket.create_connection(address, min(CONNECT_S, deadline.left())) as sock,
        selectors.DefaultSelector() as selector,
    ):
        connection = Connection(sock, ClientGreeting(token, hello.node_rank))
        selector.register(sock, selectors.EVENT_READ)
        has_said_it = False
        while True:
            interrupts.check()
            if selector.select(min(TICK_S, deadline.left())):
                for note, _ in connection.receive():
                    return note
            if connection.frames is not None and not has_said_it:
                connection.send({**hello.document(), "kind": HELLO})
                has_said_it = True
            connection.flush()
