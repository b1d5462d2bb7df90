"""Processes of its own for which a thread waits, as far as the kernel tells which: by wait4, at a pipe, at a socket."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from nsadiag.agent.captures.kernel.descriptors import INODE, sockets_of
from nsadiag.agent.captures.kernel.pipes import far_end
from nsadiag.evidence.blocking import syscall_name

P_PID = 1  # of waitid: for one process
AT_A_SOCKET = ("recvfrom", "recvmsg", "read")


def awaited(pid: int, syscall: str | None, below: dict[int, int]) -> list[int]:
    """Descendants without which the thread does not go on, and all that these have started.

    `syscall` is the thread's /proc/<pid>/task/<tid>/syscall; `below` has the living descendants of `pid`, with their parents.
    """
    words = (syscall or "").split()
    if not below or len(words) < 3 or not words[0].isdigit():
        return []
    call = syscall_name(int(words[0]), platform.machine())
    first, second = (int(word, 0) for word in words[1:3])
    if call == "wait4":
        return _with_families({first & 0xFFFFFFFF}, below)
    if call == "waitid":
        return _with_families({second} if first == P_PID else set(), below)
    if call in AT_A_SOCKET and (peer := _other_end(pid, first)):
        return _with_families({child for child in below if _holds(child, peer)}, below)
    return far_end(pid, syscall, below)


def _with_families(roots: set[int], below: dict[int, int]) -> list[int]:
    found = roots & below.keys()
    while more := {child for child, parent in below.items() if parent in found} - found:
        found |= more
    return sorted(found)


def _other_end(pid: int, descriptor: int) -> int | None:
    """The inode of the socket at the other end of that one, if it is on this machine, too."""
    inode = _socket(pid, str(descriptor))
    if inode is None:
        return None
    sockets = sockets_of(pid)
    own = sockets.get(inode, {})
    if own.get("kind") == "unix":
        return own["peer_inode"] or None
    ends = own.get("peer"), own.get("local")
    return next(
        (n for n, row in sockets.items() if own and ends == (row.get("local"), row.get("peer"))), None
    )


def _holds(pid: int, inode: int) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - numbers, not paths
    except OSError:
        return False
    return any(_socket(pid, number) == inode for number in descriptors)


def _socket(pid: int, descriptor: str) -> int | None:
    try:
        found = INODE.fullmatch(str(Path(f"/proc/{pid}/fd/{descriptor}").readlink()))
    except OSError:
        return None
    return int(found[2]) if found and found[1] == "socket" else None
