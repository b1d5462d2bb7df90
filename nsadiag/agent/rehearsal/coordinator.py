"""The coordinator of a rehearsal: it hears of every call before it is made, and says which can be made."""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nsadiag.agent.rehearsal.call_recorder import CallRecorder
from nsadiag.agent.rehearsal.matching import Matching, Met
from nsadiag.evidence.rehearsal.calls import SEND, Call, Hello, Message, data_file, read_message
from nsadiag.evidence.rehearsal.touches import Hold, held_file, release_file

POLL_S = 0.05
# Without any message, while the rank that a held one waits for waits itself: the held one goes on.
RELEASE_S = 0.5
MOST_LINE = 2**24  # bytes of one message


@dataclass(eq=False)
class _Rank:
    """One connection."""

    socket: socket.socket
    number: int = -1
    buffer: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)


class Coordinator(threading.Thread):
    """Listens on a socket of its own in a directory that is ours; everything that it knows is read under its lock."""

    def __init__(self, directory: Path, hold: Hold | None = None) -> None:
        super().__init__(name="nsadiag-coordinator", daemon=True)
        self._hold = hold
        self.path = directory / "rehearsal.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(1024)
        self._ranks: dict[int, _Rank] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._stopped = threading.Event()
        self.lock, self.matching, self.recorder = threading.Lock(), Matching(), CallRecorder()
        self.heard = time.monotonic()  # when the last message came
        self._unread: dict[tuple[int, int], tuple[set[tuple[int, int]], list[Call]]] = {}

    def run(self) -> None:
        while not self._stopped.is_set():
            if self._hold is not None:
                self._release(self._hold)
            for key, events in self._selector.select(POLL_S):
                if key.data is None:
                    connection, _address = self._listener.accept()
                    connection.setblocking(False)
                    self._selector.register(connection, selectors.EVENT_READ, _Rank(socket=connection))
                elif events & selectors.EVENT_READ:
                    self._hear(key.data)
                else:
                    with self.lock:
                        self._send(key.data)

    def close(self) -> None:
        """Ends the thread, and all connections."""
        self._stopped.set()
        with suppress(OSError), socket.socket(socket.AF_UNIX) as waking:
            waking.connect(str(self.path))
        self.join()
        for key in list(self._selector.get_map().values()):
            with suppress(OSError):
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _release(self, hold: Hold) -> None:
        """Lets a held rank go on when the one that it waits for waits for a call, or is over."""
        if not held_file(self.path).exists() or time.monotonic() - self.heard < RELEASE_S:
            return
        waiting = {call.rank for call in self.matching.open_calls()} | self.matching.ended
        if hold.early.rank in waiting:
            release_file(self.path).touch()

    def _hear(self, rank: _Rank) -> None:
        try:
            data = rank.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        with self.lock:
            self.heard = time.monotonic()
            if not data or len(rank.buffer) > MOST_LINE:
                self._drop(rank)
                return
            rank.buffer += data
            *lines, rest = bytes(rank.buffer).split(b"\n")
            rank.buffer = bytearray(rest)
            try:
                for line in lines:
                    self._take(rank, read_message(line, rank.number))
            except ValueError:  # no rank of ours says such a thing
                self._drop(rank)

    def _drop(self, rank: _Rank) -> None:
        """Ends a connection; the program of a rank that closes it is over."""
        self._selector.unregister(rank.socket)
        rank.socket.close()
        if rank.number >= 0:
            self.matching.ended.add(rank.number)

    def _take(self, rank: _Rank, message: Message) -> None:
        if isinstance(message, Hello):
            rank.number = message.rank
            self._ranks[rank.number] = rank
        elif isinstance(message, Call):
            self.recorder.announced(message)
            for met in self.matching.add(message):
                self._answer(met)
        else:
            self._done((rank.number, message.number))

    def _answer(self, met: Met) -> None:
        calls = list(met.calls)
        self.recorder.made(met.calls)
        names = {(call.rank, call.number) for call in calls}
        for name in names:
            self._unread[name] = names, calls
        peers = [(c.rank, c.number, list(c.sent)) for c in calls]
        if calls[0].op == SEND:
            peers = peers[:1]
        known = self.matching.known_after(met)
        for call in calls:
            answer = {"number": call.number, "peers": peers, "ahead_s": met.ahead_s, "known": known}
            rank = self._ranks[call.rank]
            rank.unsent += (json.dumps(answer) + "\n").encode()
            self._send(rank)

    def _send(self, rank: _Rank) -> None:
        """As much as the socket takes: a rank that is itself sending does not read, and must not stop us from reading."""
        with suppress(OSError, KeyError, ValueError):  # a rank that has gone needs no answer
            with suppress(BlockingIOError):
                del rank.unsent[: rank.socket.send(rank.unsent)]
            more = selectors.EVENT_WRITE if rank.unsent else 0
            self._selector.modify(rank.socket, selectors.EVENT_READ | more, rank)

    def _done(self, name: tuple[int, int]) -> None:
        """Inputs are removed as soon as every member has read them."""
        names, calls = self._unread.pop(name, (set(), []))
        names.discard(name)
        if not names:
            for call in calls:
                data_file(self.path, call.rank, call.number).unlink(missing_ok=True)


@contextmanager
def coordinating(directory: Path) -> Iterator[Coordinator]:
    """A coordinator that listens in the directory, within the block."""
    coordinator = Coordinator(directory)
    coordinator.start()
    try:
        yield coordinator
    finally:
        coordinator.close()
