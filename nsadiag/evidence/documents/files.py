"""Opens evidence: whatever lies in a directory that a job, another machine or a stranger wrote.

Regular files only, of bounded size, and no link that leads out of the directory. Standard library only.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import IO

from nsadiag.evidence.documents import kept
from nsadiag.evidence.ownership import check_private

MIB = 1 << 20
# A JSON document takes up to 24 times its size once it is read.
MOST_BYTES = 16 * MIB
MOST_OF_KIND = {".bin": 64 * MIB, ".pickle": 32 * MIB, ".py": MIB}
MOST_OF_NAME = {"matrix.json": 64 * MIB}
NUMBER = re.compile(r"[0-9]{1,9}")
RANK = re.compile(r"[0-9]{5,9}")
# Rings that are held in memory while a job runs (agent/job/ring_storage.py): the only links that nsadiag makes.
RING = re.compile(r"/dev/shm/nsadiag-[\w.-]+/[\w.-]+")
RING_NAMES = frozenset({"blackbox.bin", "names.bin"})
KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a directory"),
)


class EvidenceRefused(OSError):
    """A file that is not read, whatever is in it; `strerror` says why."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


def most_bytes(path: Path) -> int:
    """The size limit of a file of that name."""
    return MOST_OF_NAME.get(path.name) or MOST_OF_KIND.get(path.suffix, MOST_BYTES)


def open_evidence(path: Path, root: Path | None = None) -> IO[bytes]:
    """The file, at its beginning. Raises OSError, and EvidenceRefused where it is not one that may be read.

    `root` is the directory that links may not leave; without it, what the layout of a run directory tells.
    """
    if "\0" in str(path):
        raise EvidenceRefused(path, "has no name that a file can have")
    seen = os.lstat(path)
    root = root or _root(path)
    if stat.S_ISLNK(seen.st_mode) or _is_below_a_link(path, root):
        path = _inside(path, root)
        seen = os.lstat(path)
    _check_regular(path, seen)
    # The file may have been replaced since: a pipe does not block with O_NONBLOCK, and a link is not followed.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb", buffering=0)
    try:
        _check_regular(path, os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def read_evidence(path: Path, root: Path | None = None) -> bytes:
    """All of the file. Raises OSError, and EvidenceRefused where it is larger than any file of its kind."""
    if (content := kept.content_of(path)) is not None:
        return content
    most = most_bytes(path)
    with open_evidence(path, root) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise EvidenceRefused(path, f"is larger than {most // MIB} MiB")
        return _read(file, most)


def read_text(path: Path, root: Path | None = None) -> str:
    """All of the file as text. Raises OSError."""
    return read_evidence(path, root).decode(errors="replace")


def read_begin(path: Path, most: int, root: Path | None = None) -> bytes:
    """The first bytes of the file, however large it is. Raises OSError."""
    with open_evidence(path, root) as file:
        return _read(file, most)


def read_tail(path: Path, most: int, root: Path | None = None) -> bytes:
    """The last bytes of the file, however large it is. Raises OSError."""
    with open_evidence(path, root) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - most, 0))
        return _read(file, most)


def tail_of(path: Path, most: int) -> str:
    """The same as text, "" where there is none."""
    try:
        return read_tail(path, most).decode(errors="replace")
    except OSError:
        return ""


def check_own_folder(path: Path) -> None:
    """Raises EvidenceRefused where what is written to `path` would land in another directory than it says."""
    if _is_below_a_link(path, _root(path)):
        raise EvidenceRefused(path, "lies behind a link to another directory")


def numbered(folder: Path) -> list[Path]:
    """The numbered entries of the folder, in their order; of several that spell one number, the shortest."""
    try:
        names = [name for name in os.listdir(folder) if NUMBER.fullmatch(name)]  # noqa: PTH208 - names, not paths
    except (OSError, ValueError):
        return []
    by_number = {int(name): name for name in sorted(names, key=len, reverse=True)}
    return [folder / by_number[number] for number in sorted(by_number)]


def holds_anything(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def _read(file: IO[bytes], most: int) -> bytes:
    """Up to so many bytes: a file may grow while it is read."""
    found = bytearray()
    while len(found) < most and (chunk := file.read(min(most - len(found), 8 * MIB))):
        found += chunk
    return bytes(found)


def _check_regular(path: Path, seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode):
        what = next((what for is_, what in KINDS if is_(seen.st_mode)), "no regular file")
        raise EvidenceRefused(path, f"is {what}")


def _root(path: Path) -> Path:
    """The directory of a run or matrix that the file belongs to; else the folder in which it lies."""
    root = _run_of(path)
    return root.parent.parent if root.parent.name == "cells" else root


def _run_of(path: Path) -> Path:
    within = path
    for folder in path.parents:
        if folder.name == "ranks" and RANK.fullmatch(within.name):
            return folder.parent
        if folder.name == "nodes" and within != path:
            return folder.parent
        if folder.name == "sources" and within == path:
            return folder.parent
        within = folder
    return path.parent


def _is_below_a_link(path: Path, root: Path) -> bool:
    last = str(root)  # paths take their time to compare
    for folder in path.parents:
        if str(folder) == last:
            return False
        if folder.is_symlink():
            return True
    return False


def _inside(path: Path, root: Path) -> Path:
    """The target of the link, if it is in the same directory, or a ring of this user's own."""
    try:
        target = path.resolve(strict=True)
    except RuntimeError:  # before Python 3.13: links that lead in a circle
        raise EvidenceRefused(path, "is a link that leads nowhere") from None
    if target.is_relative_to(root.resolve()) or (path.name in RING_NAMES and _is_own_ring(target)):
        return target
    raise EvidenceRefused(path, "is a link that leads out of the directory")


def _is_own_ring(target: Path) -> bool:
    if RING.fullmatch(str(target)) is None:
        return False
    try:
        check_private(target.parent)
    except OSError:
        return False
    return True
