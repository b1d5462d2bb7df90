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
    """Raises PermissionError if another user made the file, directory or link in a directory that everybody may write to."""
    whole = os.path.abspath(path)  # noqa: PTH100 - without resolving a link at the end
    if not os.stat(os.path.dirname(whole)).st_mode & stat.S_IWOTH:  # noqa: PTH116, PTH120
        return
    if os.lstat(whole).st_uid not in _trusted():
        raise PermissionError(
            errno.EPERM, "another user made it, in a directory that everybody may write to", whole
        )


def check_private(directory: str | Path) -> None:
    """Raises PermissionError unless it is a directory, and no link, of this user's alone."""
    seen = os.lstat(directory)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in _trusted() or seen.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "is no directory of this user's alone", str(directory))


def opened(path: str | Path, flags: int, is_kind: Callable[[int], bool], owners: Collection[int]) -> int:
    """A descriptor of a file of that kind (`stat.S_ISFIFO`) and one of these owners. Follows no link, waits for no reader. Raises OSError."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    seen = os.fstat(handle)
    if not is_kind(seen.st_mode) or seen.st_uid not in owners:
        os.close(handle)
        raise PermissionError(errno.EPERM, "is not what the job made there", str(path))
    return handle


def _trusted() -> tuple[int, ...]:
    me = os.geteuid()
    return (me, NOBODY) if me == 0 else (me, 0)
