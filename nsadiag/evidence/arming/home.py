"""The folder on this node where the ranks of a user record while they live, private and in memory where that can be had.

Ranks and watcher of one user meet there: by NSADIAG_RUNTIME_DIR, by the user's runtime directory, or else in a folder whose
name nobody can guess, found by its owner. Standard library only: ranks read this as they start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from nsadiag.evidence.layout import RunDir, make_private_dir, open_private, write_private
from nsadiag.evidence.ownership import check_private

RUNTIME_DIR = "NSADIAG_RUNTIME_DIR"
MEMORY = Path("/dev/shm")
PREFIX = "nsadiag-armed-"
SETTLED = "settled"
# Whoever makes a folder looks again after so long: of two that were made at once, all then take the same.
SETTLES_S = 0.02
ATTEMPTS = 5


class Home:
    """One such folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    jobs = property(lambda self: self.path / "jobs")
    log = property(lambda self: self.path / "watcher.log")
    state = property(lambda self: self.path / "watcher.json")
    _watcher = property(lambda self: self.path / "watcher.lock")
    _gate = property(lambda self: self.path / "gate.lock")

    def job(self, name: str) -> RunDir:
        return RunDir(path=self.jobs / name)

    def job_names(self) -> list[str]:
        """Names of all jobs that are here."""
        try:
            return sorted(name for name in os.listdir(self.jobs) if not name.startswith("."))  # noqa: PTH208
        except OSError:
            return []

    @contextlib.contextmanager
    def entering(self) -> Iterator[None]:
        """Within the block nothing of this folder is removed. Raises OSError, FileNotFoundError where it just was."""
        with _locked(self._gate, fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def clearing(self) -> Iterator[bool]:
        """Yields True where nobody enters: within the block nobody will."""
        try:
            with _locked(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield True
        except BlockingIOError:
            yield False

    def take_watch(self) -> int | None:
        """A descriptor that holds the watch as long as it is open; None where another process has it. Raises OSError."""
        handle = _opened(self._watcher)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle

    def is_watched(self) -> bool:
        """Whether a watcher lives."""
        try:
            handle = self.take_watch()
        except OSError:
            return False
        if handle is None:
            return True
        os.close(handle)
        return False

    def remove(self) -> None:
        """All of it; to be called where nobody enters."""
        gone = self.path.with_name(f".{self.path.name}-{os.getpid()}")
        with contextlib.suppress(OSError):
            self.path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def found(*, create: bool = False) -> Home | None:
    """This user's home on this node; None where there is none, or none can be made. `create`: make one where none is."""
    for path in _named():
        try:
            if create:
                make_private_dir(path)
            check_private(path)
        except OSError:
            continue
        return Home(path)
    return _unnamed(create=create)


def _named() -> Iterator[Path]:
    """Those whose place is the user's alone."""
    if told := os.environ.get(RUNTIME_DIR):
        yield Path(told)
        return
    for place in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.geteuid()}"):
        if place and _is_own(Path(place)):
            yield Path(place) / "nsadiag-armed"


def _is_own(place: Path) -> bool:
    try:
        seen = place.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(seen.st_mode)
        and seen.st_uid == os.geteuid()
        and not seen.st_mode & 0o022
        and os.access(place, os.W_OK)
    )


def _unnamed(*, create: bool) -> Home | None:
    place = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    for _ in range(ATTEMPTS if create else 1):
        if settled := _candidates(place, settled=True):
            return Home(settled[0])
        if not create:
            return None
        try:
            mine = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        except OSError:
            return None
        time.sleep(SETTLES_S)
        chosen = (_candidates(place, settled=True) or _candidates(place, settled=False) or [mine])[0]
        if chosen == mine:
            with contextlib.suppress(OSError):
                write_private(mine / SETTLED, "")
                return Home(mine)
        with contextlib.suppress(OSError):
            mine.rmdir()
        time.sleep(SETTLES_S)  # for whoever made it to settle
    return None


def _candidates(place: Path, *, settled: bool) -> list[Path]:
    """In one order for everybody."""
    own = []
    with contextlib.suppress(OSError):
        for path in sorted(place.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError):
                # Root is trusted elsewhere; here a folder of root's is root's own home.
                if path.lstat().st_uid == os.geteuid():
                    check_private(path)
                    own.append(path)
    return [path for path in own if not settled or (path / SETTLED).exists()]


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    handle = _opened(path)
    try:
        fcntl.flock(handle, how)
        # Whoever removed the folder meanwhile held the lock of a file that is there no more.
        if os.fstat(handle).st_nlink == 0 or not path.exists():
            raise FileNotFoundError(str(path))
        yield
    finally:
        os.close(handle)


def _opened(path: Path) -> int:
    with open_private(path, "ab") as file:
        return os.dup(file.fileno())
