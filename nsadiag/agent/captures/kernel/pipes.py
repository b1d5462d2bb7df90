"""The children that a main thread waits for at a pipe, by who holds the pipe's other end."""

from __future__ import annotations

import os
import platform
import re
import stat
from pathlib import Path

from nsadiag.evidence.blocking import syscall_name

READ, WRITE = stat.S_IRUSR, stat.S_IWUSR
# The first argument is the descriptor.
BY_CALL = {"read": READ, "readv": READ, "write": WRITE, "writev": WRITE}
PIPE = re.compile(r"pipe:\[(\d+)\]")


def far_end(pid: int, syscall: str | None, below: dict[int, int]) -> list[int]:
    """Descendants that hold the other end of the pipe at which `pid` stands, and those behind them in a pipeline.

    `syscall` is /proc/<pid>/syscall; `below` has its living descendants, with their parents. A forked process that only
    inherited the rank's own end is none of them.
    """
    words = (syscall or "").split()
    call = syscall_name(int(words[0]), platform.machine()) if words and words[0].isdigit() else None
    mode = BY_CALL.get(call or "")
    at = _pipe(pid, int(words[1], 0)) if mode else None
    if at is None or not below:
        return []
    other = READ + WRITE - mode if mode else 0
    ends = {child: _ends(child) for child in below}
    goals, found = {at}, set[int]()
    while True:
        new = {c for c, held in ends.items() if c not in found and _holds(held, goals, other)}
        new |= {c for c, parent in below.items() if parent in found and c not in found}
        if not new:
            return sorted(found)
        found |= new
        # Who writes here what it reads there, waits for whoever writes there.
        goals |= {inode for c in new for inode, way in ends[c] if way == mode}


def _holds(held: set[tuple[int, int]], goals: set[int], way: int) -> bool:
    return any((inode, way) in held for inode in goals)


def _ends(pid: int) -> set[tuple[int, int]]:
    """Pipes that a process holds, each with the way in which it can use it."""
    found = set()
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - numbers, not paths
    except OSError:
        return set()
    for number in descriptors:
        inode, ways = _pipe(pid, int(number)), _ways(pid, int(number))
        if inode is not None:
            found |= {(inode, way) for way in (READ, WRITE) if ways & way}
    return found


def _pipe(pid: int, descriptor: int) -> int | None:
    try:
        match = PIPE.fullmatch(str(Path(f"/proc/{pid}/fd/{descriptor}").readlink()))
    except OSError:
        return None
    return int(match[1]) if match else None


def _ways(pid: int, descriptor: int) -> int:
    """The link's own permissions are those with which the file is open."""
    try:
        return os.lstat(f"/proc/{pid}/fd/{descriptor}").st_mode & (READ | WRITE)
    except OSError:
        return 0
