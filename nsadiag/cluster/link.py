"""The end of the side channel on every node but 0: connects, connects again, answers at once whatever the watch is busy with."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from nsadiag.cluster.protocol import clock
from nsadiag.cluster.protocol.connection import Connection
from nsadiag.cluster.protocol.wire import ClientGreeting, Refused
from nsadiag.deadlines.deadline import Deadline

TICK_S = 0.2
CONNECT_S = 3.0
AGAIN_S = 1.0
SILENT_S = 15.0
ANSWER_S = 30.0  # about one file
# All that node 0 has to say besides its questions for a sign of life, and its answers to files.
NOTES = frozenset({"start", "part", "order", "bye"})
ROOM_BYTES = 1024 * 1024  # of evidence that is on its way


class Lost(Exception):
    """Node 0 has not been heard of for too long."""


class Link:
    """Speaks with node 0 at `address`. What `tell` was given last of each kind is told again after an interruption."""

    def __init__(self, token: str, address: tuple[str, int], node_rank: int, agent: str) -> None:
        self._token, self._address, self._node_rank, self._agent = token, address, node_rank, agent
        self._lock = threading.Condition()
        self._heard: dict[str, dict[str, Any]] = {}
        self._told: dict[str, dict[str, Any]] = {}
        self._untold: set[str] = set()
        self._frames: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
        self._queued = 0
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._connection: Connection | None = None
        self._last_heard = time.monotonic()
        self.refused: str | None = None  # why node 0 does not speak with us
        self._closing = threading.Event()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="nsadiag-link", daemon=True)
        self._thread.start()

    # -- for the watch ------------------------------------------------------------------------------

    def tell(self, kind: str, body: Mapping[str, Any]) -> None:
        with self._lock:
            self._told[kind] = dict(body)
            self._untold.add(kind)
        self._nudge()

    def heard(self, kind: str) -> dict[str, Any] | None:
        """The newest note of that kind."""
        with self._lock:
            return self._heard.get(kind)

    def silent_s(self) -> float:
        """Since node 0 was last heard."""
        with self._lock:
            return time.monotonic() - self._last_heard

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def all_sent(self) -> bool:
        """Whether everything that was to be told has left."""
        with self._lock:
            standing = self._connection
            return standing is not None and not (self._untold or self._queued or standing.waiting)

    # -- for evidence -------------------------------------------------------------------------------

    def push(self, note: dict[str, Any], blob: bytes, deadline: Deadline) -> None:
        """A frame of a file; waits until there is room for it. Raises Lost, and TimeoutError."""
        with self._lock:
            while self._connection is not None and self._queued > ROOM_BYTES:
                self._lock.wait(min(TICK_S, deadline.left()))
            deadline.left()
            if self._connection is None:
                raise Lost
            self._queued += len(blob) + 1
            self._frames.put((note, blob))
        self._nudge()

    def answer(self, deadline: Deadline) -> dict[str, Any]:
        """The answer of node 0 about a file. Raises Lost, and TimeoutError."""
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=min(TICK_S, deadline.left()))
            if self._connection is None:
                break
        raise Lost

    def forget_answers(self) -> None:
        """Those to questions of before an interruption."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._answers.get_nowait()

    def close(self) -> None:
        self._closing.set()
        self._nudge()
        self._thread.join(5.0)

    def _nudge(self) -> None:
        """The thread looks up from its sockets; one that has ended has nothing to look for."""
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    # -- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                sock = socket.create_connection(self._address, CONNECT_S)
            except OSError:
                self._closing.wait(AGAIN_S)
                continue
            connection = Connection(sock, ClientGreeting(self._token, self._node_rank))
            try:
                self._talk(connection)
            except Refused as error:
                self.refused = str(error)
            except OSError:
                pass
            except Exception as error:
                self.refused = repr(error)
            finally:
                connection.close()
                self._forget_connection()
            self._closing.wait(AGAIN_S)
        self._woken.close()

    def _talk(self, connection: Connection) -> None:
        """Until the connection breaks, or node 0 has been silent for too long."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(connection.sock, selectors.EVENT_READ)
            alive = time.monotonic()
            while not self._closing.is_set() or connection.waiting:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.waiting else 0)
                selector.modify(connection.sock, wanted)
                for key, _ in selector.select(TICK_S):
                    if key.fileobj is self._woken:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(4096)
                    else:
                        for note, _blob in connection.receive():
                            alive = time.monotonic()
                            self._hear(connection, note)
                self._introduce(connection)
                self._send_out(connection)
                connection.flush()
                if time.monotonic() - alive > SILENT_S:
                    raise ConnectionResetError("silent")

    def _introduce(self, connection: Connection) -> None:
        if connection.frames is None or self._connection is connection:
            return
        connection.send({"kind": "agent", "agent": self._agent})
        with self._lock:
            self._connection, self._last_heard = connection, time.monotonic()
            self._untold = set(self._told)

    def _hear(self, connection: Connection, note: dict[str, Any]) -> None:
        kind = str(note.get("kind"))
        with self._lock:
            self._last_heard = time.monotonic()
            if kind in NOTES:
                self._heard[kind] = note
        if kind == "ping":
            self._introduce(connection)
            connection.send({"kind": "pong", "to": note.get("at"), **clock.document(clock.read())})
        elif kind == "file":
            self._answers.put(note)

    def _send_out(self, connection: Connection) -> None:
        if self._connection is not connection:
            return
        with self._lock:
            notes = [self._told[kind] | {"kind": kind} for kind in sorted(self._untold)]
            self._untold.clear()
        for note in notes:
            connection.send(note)
        while connection.waiting < ROOM_BYTES:
            try:
                note, blob = self._frames.get_nowait()
            except queue.Empty:
                break
            connection.send(note, blob)
            with self._lock:
                self._queued -= len(blob) + 1
                self._lock.notify_all()

    def _forget_connection(self) -> None:
        """Drop the connection; files in transit are sent again from the start."""
        with self._lock:
            self._connection = None
            with contextlib.suppress(queue.Empty):
                while True:
                    self._frames.get_nowait()
            self._queued = 0
            self._lock.notify_all()
