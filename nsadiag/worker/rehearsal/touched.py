"""The files that a rank looks for, reads and writes below the working directory; and a rank that is held before one of them.

Python's audit events tell of files that it opens, lists, renames and removes. It has none for a look (`os.stat`), nor has
torch for what it writes in C++.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.serialization

from nsadiag.evidence.rehearsal import FILES, HOLD, SOCKET
from nsadiag.evidence.rehearsal.touches import (
    READS,
    WRITES,
    Access,
    Hold,
    Touch,
    What,
    held_file,
    hold_of,
    mark_file,
    read_touches,
    release_file,
    touches_file,
)
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.place import user_place
from nsadiag.worker.recorder import Recorder

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SOURCES = (".py", ".pyc", ".so", ".pth")
LISTS = {"os.listdir", "os.scandir"}
# Where the path lies in an event's arguments, and what is done to it.
CHANGES: dict[str, tuple[tuple[int, What], ...]] = {
    "os.rename": ((0, "remove"), (1, "write")), "os.link": ((1, "write"),), "os.symlink": ((1, "write"),),
    "os.remove": ((0, "remove"),), "os.rmdir": ((0, "remove"),), "os.mkdir": ((0, "write"),),
}  # fmt: skip
MOST_TOUCHES, MOST_ALIKE = 4096, 8
HOLD_S, POLL_S, SETTLED_S = 5.0, 0.005, 0.15
_touched: Touched | None = None
_Signature = tuple[int, int, int] | None


def start(rank: Recorder) -> None:
    """From here on the accesses of this rank are written down, where that is asked for."""
    global _touched
    if _touched is not None or not os.environ.get(FILES):
        return
    hold = os.environ.get(HOLD)
    _touched = Touched(
        Path(os.environ[SOCKET]), rank.directory.rank, os.environ[FILES], hold_of(hold) if hold else None
    )
    sys.addaudithook(_touched.heard)
    for name in ("stat", "lstat", "access"):
        _look_through(name, _touched.looked)
    opened = torch.serialization._open_zipfile_writer

    @functools.wraps(opened)
    def writer(file: Any) -> Any:
        if isinstance(file, str | os.PathLike) and _touched is not None:
            _touched.seen("write", file)
        return opened(file)

    vars(torch.serialization)["_open_zipfile_writer"] = writer


def met(known: dict[int, int]) -> None:
    """A call was answered: what every rank had announced before."""
    if _touched is not None:
        _touched.known = known


def announced(calls: int) -> None:
    """A call is about to be announced."""
    if _touched is not None:
        _touched.calls, _touched.slept = calls, False


def slept() -> None:
    """The rank sleeps, or skips it."""
    if _touched is not None:
        _touched.slept = True


def _look_through(name: str, looked: Callable[[Any], None]) -> None:
    plain = getattr(os, name)

    @functools.wraps(plain)
    def look(path: Any, *args: Any, **more: Any) -> Any:
        looked(path)
        return plain(path, *args, **more)

    # shutil asks whether a function is in these.
    for each in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if plain in each:
            each.add(look)
    setattr(os, name, look)


class Touched:
    """The accesses of one process."""

    def __init__(self, socket: Path, rank: int, tree: str, hold: Hold | None) -> None:
        self._socket, self._rank, self._tree, self._hold = socket, rank, tree.rstrip("/") + "/", hold
        self._pid, self._stat = os.getpid(), os.stat
        self._rows = touches_file(socket, rank).open("a")
        self._counts = Counter[tuple[str, str, str]]()
        self._found = set[tuple[str, str, str]]()
        self._is_inside = False
        self.known: dict[int, int] = {}
        self.calls, self.slept = 0, False

    def heard(self, event: str, args: tuple[Any, ...]) -> None:
        """An audit event."""
        if event == "open":
            if isinstance(args[0], str) and args[0].endswith(SOURCES):
                return  # an import opens thousands
            self.seen("write" if isinstance(args[2], int) and args[2] & WRITING else "read", args[0])
        elif event in LISTS:
            self.seen("list", "." if args[0] is None else args[0])
        elif event in CHANGES:
            for at, what in CHANGES[event]:
                self.seen(what, args[at])
        elif event == "time.sleep":  # since Python 3.11; before a group is created
            self.slept = True

    def looked(self, path: Any) -> None:
        """`os.stat` and its kind."""
        self.seen("look", path)

    def seen(self, what: What, path: Any) -> None:
        """An access that is about to be made."""
        if self._is_inside or isinstance(path, int) or os.getpid() != self._pid:
            return
        self._is_inside = True
        try:
            full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links stay
            is_ours = full.startswith(self._tree) and not full.endswith(SOURCES)
            if is_ours and (what in WRITES or not _is_passing()):
                self._take(what, full)
        except Exception as error:
            pass_on(error)
        finally:
            self._is_inside = False

    def _take(self, what: What, path: str) -> None:
        place = user_place()
        key = what, path, place
        if not place or len(self._counts) >= MOST_TOUCHES:
            return
        self._counts[key] += 1
        access = Access(rank=self._rank, what=what, path=path, place=place, nth=self._counts[key])
        if self._hold and self._hold.late == access:
            self._wait(self._hold.early)
        if self._hold and self._hold.early == access and what in READS:
            mark_file(self._socket).touch()
        found = self._signature(path) is not None
        if self._counts[key] > MOST_ALIKE and (not found or key in self._found):
            return
        if found:
            self._found.add(key)
        touch = Touch(
            access=access,
            calls=self.calls,
            known=self.known,
            at_ns=time.monotonic_ns(),
            slept=self.slept,
            found=found,
        )
        self._rows.write(json.dumps(asdict(touch)) + "\n")
        self._rows.flush()

    def _wait(self, early: Access) -> None:
        """Until the other access has happened, or cannot before this one."""
        held = held_file(self._socket)
        held.write_text("")
        until = time.monotonic_ns() + int(HOLD_S * 1e9)
        first, last, since = self._signature(early.path), self._signature(early.path), time.monotonic_ns()
        is_read = early.what in READS
        # That rank may have come first by itself: then nothing changes any more.
        is_made = any(touch.access == early for touch in read_touches(self._socket.parent))
        while time.monotonic_ns() < until and not release_file(self._socket).exists():
            now = self._signature(early.path)
            if now != last:
                last, since = now, time.monotonic_ns()
            is_settled = time.monotonic_ns() - since > SETTLED_S * 1e9
            if mark_file(self._socket).exists() if is_read else (is_made or last != first) and is_settled:
                if is_read:
                    time.sleep(SETTLED_S)  # the read itself comes behind its mark
                held.write_text("done")
                return
            time.sleep(POLL_S)
        held.unlink()

    def _signature(self, path: str) -> _Signature:
        try:
            about = self._stat(path)
        except OSError as error:
            pass_on(error)
            return None
        return about.st_ino, about.st_size, about.st_mtime_ns


def _is_passing() -> bool:
    """Whether the access is a step of making a directory that may be there, or of an import."""
    frame = sys._getframe(3)
    for _ in range(4):
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name in ("makedirs", "mkdir") or file.startswith("<frozen importlib"):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
