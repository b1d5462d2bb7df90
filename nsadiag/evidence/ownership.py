"""The owner of what lies in a directory that everybody may write to, such as /tmp and /dev/shm.

Whoever can predict a name there can make the file first, and so choose where we write and what we read. Standard library only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = 65534  # owns what root makes on a network file system that does not trust root


def check_not_planted(path: str | Path) -> None:
    """Raises PermissionError if another user made the file, directory or link in a directory that everybody may write to.

    The same of a link on the way to it.
    """
    check_way(path)
    _check_made_by_us(os.path.abspath(path))  # noqa: PTH100 - without resolving a link at the end


def check_way(path: str | Path) -> None:
    """The same of links on the way alone: a directory of another's there may be one that is shared."""
    above = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    while above != os.path.dirname(above):  # noqa: PTH120
        if os.path.islink(above):  # noqa: PTH114
            _check_made_by_us(above)
        above = os.path.dirname(above)  # noqa: PTH120


def _check_made_by_us(whole: str) -> None:
    where = os.path.dirname(whole)  # noqa: PTH120
    if not os.stat(where).st_mode & stat.S_IWOTH:  # noqa: PTH116
        return
    if not _is_trusted(os.lstat(whole).st_uid, where):
        raise PermissionError(
            errno.EPERM, "another user made it, in a directory that everybody may write to", whole
        )


def check_private(directory: str | Path) -> None:
    """Raises PermissionError unless it is a directory, and no link, of this user's alone."""
    seen = os.lstat(directory)
    if (
        not stat.S_ISDIR(seen.st_mode)
        or seen.st_mode & 0o077
        or not _is_trusted(seen.st_uid, os.fspath(directory))
    ):
        raise PermissionError(errno.EPERM, "is no directory of this user's alone", str(directory))


def opened(path: str | Path, flags: int, is_kind: Callable[[int], bool], owners: Collection[int]) -> int:
    """A descriptor of a file of that kind (`stat.S_ISFIFO`) and one of these owners. Follows no link, waits for no reader. Raises OSError."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    seen = os.fstat(handle)
    if not is_kind(seen.st_mode) or seen.st_uid not in owners:
        os.close(handle)
        raise PermissionError(errno.EPERM, "is not what the job made there", str(path))
    return handle


def _is_trusted(owner: int, directory: str) -> bool:
    """Whether it is this user or root; NOBODY is root where what root makes in that directory belongs to it."""
    if owner in (os.geteuid(), 0):
        return True
    return owner == NOBODY and os.geteuid() == 0 and _owner_of_new(directory) == NOBODY


def _owner_of_new(directory: str) -> int | None:
    path = os.path.join(directory, f".nsadiag-{os.urandom(8).hex()}")  # noqa: PTH118
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        return os.fstat(handle).st_uid
    finally:
        os.close(handle)
        os.unlink(path)  # noqa: PTH108
