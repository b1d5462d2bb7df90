"""Passes on what is appended to log files, as `tail -f` does, to readers of whatever speed."""

from __future__ import annotations

import contextlib
import io
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nsadiag.evidence.layout import parts_of

Files = Callable[[], dict[Path, int]]  # the descriptor by the file that is copied to it
AT_ONCE = 1 << 20  # bytes of a file: what nobody reads stays where it is, on disk
PIECE = 1 << 16  # of a write: a slow reader is seen to read
STDERR = 2
BLOCKED_S = 5.0  # without a byte taken: the reader is not waited for before the verdict
INTERVAL_S = 0.1
CATCH_UP_S = 1.0
MOST_HELD = 4  # of the files that were at one path

Identity = tuple[int, int]  # device and inode


class Follow:
    """Copies files' growth to streams, from a thread; only that thread waits for who reads them."""

    def __init__(
        self,
        remark: Callable[[bytes], bytes | None] = lambda data: None,
        around: Callable[[bytes], contextlib.AbstractContextManager[None]] = lambda data: (
            contextlib.nullcontext()
        ),
    ) -> None:
        """`remark` is asked of each piece that goes to stderr, and its answer follows that piece. `around` is entered for each."""
        self._remark, self._around = remark, around
        self._files: Files = dict
        self._offsets: dict[Identity, int] = {}  # by device and inode: a full log is renamed
        # Open as long as the job may write to them, whatever is at their path by now: logs are rotated by renaming.
        self._held: dict[Path, dict[Identity, io.FileIO]] = {}
        self._closed: set[int] = set()  # sinks that take no more
        self._ending = threading.Event()
        self._moved = 0.0  # when a sink last took something
        self._rounds = 0  # in which every file was looked at
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def following(self, files: Files) -> Iterator[None]:
        """Copies while the block lasts; `files` is asked anew each time. At its end the rest, if anybody reads."""
        self._files = files
        self._thread = threading.Thread(target=self._run, name="nsadiag-follow", daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            self._moved = time.monotonic()
            self._ending.set()
            while self._thread.is_alive() and time.monotonic() - self._moved < BLOCKED_S:
                self._thread.join(INTERVAL_S)

    def catch_up(self) -> None:
        """Returns when all that was written before has been copied, or its reader takes none. Safe in a signal handler."""
        # The round under way may have looked already; no lock, since the handler may have interrupted who holds it.
        wanted, deadline = self._rounds + 2, time.monotonic() + CATCH_UP_S
        while self._rounds < wanted and time.monotonic() < deadline:
            time.sleep(INTERVAL_S / 10)

    def finish(self) -> None:
        """Returns when all has been copied, however long its reader takes."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(INTERVAL_S)

    def _run(self) -> None:
        while not self._ending.wait(INTERVAL_S):
            self._copy()
            self._rounds += 1
        self._copy()
        for held in self._held.values():
            for file in held.values():
                file.close()

    def _copy(self) -> None:
        """Copies what is new, a piece of each file in turn."""
        moved = True
        with contextlib.suppress(OSError):  # of a directory that is gone
            while moved:
                parts = [self._copy_part(path, sink) for path, sink in self._files().items()]
                moved = any(parts)

    def _copy_part(self, log: Path, sink: int) -> bool:
        """Copies one piece, of the earliest part that has one; False where nothing is left, or nobody to take it."""
        held = self._held.setdefault(log, {})
        with contextlib.suppress(OSError):
            if _identity(log.stat()) not in held:
                newest = log.open("rb", buffering=0)
                held[_identity(os.fstat(newest.fileno()))] = newest
                if len(held) > MOST_HELD:
                    held.pop(next(iter(held))).close()
        try:
            # Listed once the newest is open: whatever it follows on is then among them.
            earlier = parts_of(log)[:-1]
            return any(self._copy_earlier(part, sink) for part in earlier) or any(
                self._copy_piece(file, sink) for file in held.values()
            )
        except OSError:
            return False

    def _copy_earlier(self, part: Path, sink: int) -> bool:
        with part.open("rb", buffering=0) as file:
            return self._copy_piece(file, sink)

    def _copy_piece(self, file: io.FileIO, sink: int) -> bool:
        status = os.fstat(file.fileno())
        identity = _identity(status)
        offset = self._offsets.get(identity, 0)
        # Made shorter in place, as logrotate does it with copytruncate: what is in it now came after.
        start = _next_data(file.fileno(), offset if offset <= status.st_size else 0)
        file.seek(start)
        data = file.read(AT_ONCE)
        self._offsets[identity] = start + len(data)
        if data and sink not in self._closed:
            try:
                self._pass_on(data, sink)
                if sink == STDERR and (remark := self._remark(data)):
                    self._pass_on(remark if data.endswith(b"\n") else b"\n" + remark, sink)
            except OSError:
                self._closed.add(sink)
        return bool(data)

    def _pass_on(self, data: bytes, sink: int) -> None:
        # Not through sys.stdout: its lock, held by a thread that waits for a reader, would be fatal when we exit.
        rest = memoryview(data)
        with self._around(data):
            while rest:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(sink, rest[:PIECE]) :]
                    self._moved = time.monotonic()
                    continue
                waiting = select.poll()
                waiting.register(sink, select.POLLOUT)
                waiting.poll()


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _next_data(file: int, offset: int) -> int:
    """Behind the hole that `--log-limit` may have made at this place."""
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError:  # nothing but a hole, or the end
        return offset
