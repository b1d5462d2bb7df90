"""Node 0's end of the side channel: one thread that listens, lets in who knows the token, and keeps the latest of each note.

What agents tell each other is state, not a conversation: of each kind only the newest note counts, and after a
connection broke all are told again. So nothing depends on how often that happened.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nsadiag.cluster.protocol.clock import Clock, Offset, Reading, read, reading_of
from nsadiag.cluster.protocol.connection import Connection
from nsadiag.cluster.protocol.wire import Refused
from nsadiag.cluster.strangers import Strangers

TICK_S = 0.2
PING_S = 1.0
PING_EACH_S = 0.004  # of a thousand nodes each is asked every four seconds
BACK_S = 10.0  # a connection that broke may come back
SILENT_S = (
    15.0  # one that stands and says nothing is as good as broken: a cable tells nobody that it was pulled
)

# All that another node's agent has to say: of each the newest is kept.
NOTES = frozenset({"agent", "state", "looked", "ready"})
FRAMES = frozenset({"file", "chunk"})
# A file that comes in: the note and the bytes of a frame to what is answered.
Take = Callable[[int, dict[str, Any], bytes], dict[str, Any] | None]


@dataclass(kw_only=True)
class _Node:
    agent: str  # drawn by the agent at its start: another one with this rank is not let in
    heard: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    connection: Connection | None = None
    last_heard: float = field(default_factory=time.monotonic)
    clock: Clock = field(default_factory=Clock)
    asked: dict[int, Reading] = field(default_factory=dict)


class Hub:
    """`admitted`: by node rank, who that is; filled in as agents are met. `take` gets frames that belong to a file."""

    def __init__(self, token: str, listener: socket.socket, nnodes: int, *, take: Take) -> None:
        self._listener, self._take = listener, take
        self.port = int(listener.getsockname()[1])
        self._nodes: dict[int, _Node] = {}
        self._lock = threading.Lock()
        self._full: set[Connection] = set()  # that do not take all we have for them
        self._closing = False
        self._pinged = 0.0
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._strangers = Strangers(listener, token, self._selector, nnodes)
        self.refused = self._strangers.refused
        self._thread = threading.Thread(target=self._run, name="nsadiag-hub", daemon=True)
        self._thread.start()

    # -- for the watch ------------------------------------------------------------------------------

    def admit(self, node_rank: int, agent: str) -> None:
        """This agent may connect as that node."""
        with self._lock:
            self._nodes[node_rank] = _Node(agent=agent)

    def tell(self, kind: str, body: Mapping[str, Any], *, to: int | None = None) -> None:
        """To one node, or to all of them."""
        with self._lock:
            for rank, node in self._nodes.items():
                if to is None or rank == to:
                    node.told[kind] = dict(body)
                    node.untold.add(kind)
        self._nudge()

    def heard(self, node_rank: int, kind: str) -> dict[str, Any] | None:
        """The newest note of that kind."""
        with self._lock:
            return self._nodes[node_rank].heard.get(kind)

    def is_lost(self, node_rank: int) -> bool:
        """Whether nothing has been heard of it for longer than an interruption lasts."""
        with self._lock:
            node = self._nodes[node_rank]
            limit = BACK_S if node.connection is None else SILENT_S
            return time.monotonic() - node.last_heard > limit

    def last_heard(self, node_rank: int) -> float:
        """The time of the last message, in monotonic seconds."""
        with self._lock:
            return self._nodes[node_rank].last_heard

    def offset(self, node_rank: int) -> Offset | None:
        """The offset of its clocks from ours."""
        with self._lock:
            return self._nodes[node_rank].clock.offset()

    def all_sent(self) -> bool:
        """Whether everything that was to be told has left for every node that is connected."""
        with self._lock:
            standing = [n for n in self._nodes.values() if n.connection]
            return all(not n.untold and n.connection and not n.connection.waiting for n in standing)

    def close(self) -> None:
        self._closing = True
        self._nudge()
        self._thread.join(5.0)

    def _nudge(self) -> None:
        """The thread looks up from its sockets; one that has ended has nothing to look for."""
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    # -- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select(TICK_S):
                if key.fileobj is self._listener:
                    self._strangers.accept()
                elif key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                else:
                    self._serve(key.data)
            self._send_out()
            self._look_round()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr] # all are sockets
        self._selector.close()
        self._wake.close()

    def _serve(self, connection: Connection) -> None:
        try:
            frames = connection.receive()
            self._strangers.note(connection)
            for note, blob in frames:
                self._hear(connection, note, blob)
            connection.flush()
        except Refused as error:
            self._drop(connection, str(error))
        except OSError:
            self._drop(connection, "no agent of nsadiag" if connection in self._strangers else None)
        except Exception as error:
            # Nobody who connects may end this thread, whatever nobody has foreseen.
            self._drop(connection, repr(error))

    def _hear(self, connection: Connection, note: dict[str, Any], blob: bytes) -> None:
        rank, kind = connection.node_rank, str(note.get("kind"))
        assert rank is not None
        with self._lock:
            node = self._nodes.get(rank)
        if node is None or (node.connection is not connection and note.get("agent") != node.agent):
            raise Refused(
                f"a second agent for node {rank}" if node else f"an agent for node {rank}, which nobody met"
            )
        if node.connection is not connection:
            self._welcome(connection, node)
        with self._lock:
            node.last_heard = time.monotonic()
            if kind == "pong":
                self._learn(node, note)
            elif kind in NOTES:
                node.heard[kind] = note
            elif kind not in FRAMES:
                self.refused["a note of a kind that nobody sends"] += 1
        if kind in FRAMES:
            answer = self._take(rank, note, blob)
            if answer is not None:
                connection.send(answer)

    def _learn(self, node: _Node, note: dict[str, Any]) -> None:
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            asked = node.asked.pop(int(note["to"]))
            node.clock.learn(asked, reading_of(note), read())

    def _welcome(self, connection: Connection, node: _Node) -> None:
        """It is who it was met as; an earlier connection of it is over, whether it knows or not."""
        if node.connection is not None:
            self._drop(node.connection, None)
        self._strangers.welcome(connection)
        with self._lock:
            node.connection, node.last_heard = connection, time.monotonic()
            node.untold = set(node.told)
            node.asked.clear()

    def _send_out(self) -> None:
        with self._lock:
            ready = [
                (n, n.connection)
                for n in self._nodes.values()
                if n.connection and (n.untold or n.connection.waiting or n.connection in self._full)
            ]
        for node, connection in ready:
            with self._lock:
                notes = [node.told[kind] | {"kind": kind} for kind in sorted(node.untold)]
                node.untold.clear()
            try:
                for note in notes:
                    connection.send(note)
                connection.flush()
                self._wait_for_room(connection)
            except (Refused, OSError):
                self._drop(connection, None)

    def _wait_for_room(self, connection: Connection) -> None:
        """With a thousand nodes, the selector is not asked again for what it waits for already."""
        if bool(connection.waiting) != (connection in self._full):
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.waiting else 0)
            self._selector.modify(connection.sock, wanted, connection)
            self._full ^= {connection}

    def _look_round(self) -> None:
        """Asks for a sign of life, and closes to those who never said who they are."""
        now = time.monotonic()
        self._strangers.expire()
        if now - self._pinged < max(PING_S, PING_EACH_S * len(self._nodes)):
            return
        self._pinged = now
        with self._lock:
            ready = [(n, n.connection) for n in self._nodes.values() if n.connection]
        for node, connection in ready:
            reading = read()
            node.asked = {reading.mono_ns: reading}
            try:
                connection.send({"kind": "ping", "at": reading.mono_ns})
                connection.flush()
            except (Refused, OSError):
                self._drop(connection, None)

    def _drop(self, connection: Connection, why: str | None) -> None:
        if why is not None:
            self.refused[why] += 1
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.close()
        self._full.discard(connection)
        self._strangers.welcome(connection)
        with self._lock:
            for node in self._nodes.values():
                if node.connection is connection:
                    node.connection = None
