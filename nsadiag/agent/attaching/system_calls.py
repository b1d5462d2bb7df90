"""The system calls in which a process's threads wait, the descriptors that these are about, and the memory that it may share."""

from __future__ import annotations

import contextlib
import platform
import re
import struct
from collections.abc import Mapping
from pathlib import Path

from nsadiag.evidence.blocking import SYSCALLS, syscall_name

POLLED = struct.Struct("ihh")  # struct pollfd
POLLS, SELECTS, EPOLLS = ("poll", "ppoll"), ("select", "pselect6"), ("epoll_wait", "epoll_pwait")
MOST_POLLED = 1024
TARGET = re.compile(r"^tfd:\s+(\d+)", re.MULTILINE)
MAILBOX = "anon_inode:[eventfd]"
# Threads of ZeroMQ's own, which have the connections of all its sockets; others wait for them by a mailbox.
CARRIERS = re.compile(r"^ZMQbg/IO")
SHARED = re.compile(r"^\S+ \S{3}s \S+ (\S+) (\d+) +(?=/dev/shm/|/memfd:)(?!.*nsadiag)", re.MULTILINE)

Call = tuple[str, list[int]]


def threads_of(pid: int) -> list[int]:
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def thread_name(pid: int, tid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text()
    except OSError:
        return ""


def call_of(pid: int, tid: int) -> Call | None:
    """The name and arguments of the system call in which a thread waits."""
    try:
        task = Path(f"/proc/{pid}/task/{tid}")
        number, *words = (task / "syscall").read_text().split()
        name = syscall_name(int(number), platform.machine())
        # A poll that was interrupted, as by a look at the stack, goes on with what it was given under another name.
        if name is None and (task / "wchan").read_text().startswith("poll_schedule_timeout"):
            name = "poll"
    except (OSError, ValueError):
        return None
    return (name, [int(word, 0) for word in words]) if name else None


def awaited(pid: int, calls: Mapping[int, Call]) -> dict[int, list[int]]:
    """By thread, the descriptors one of which may end its call; for a mailbox those of the threads that fill it."""
    carried = [
        fd
        for tid, (name, arguments) in calls.items()
        if name in EPOLLS and CARRIERS.match(thread_name(pid, tid))
        for fd in watched_by(pid, arguments[0])
    ]
    found = {}
    for tid, call in calls.items():
        own = _descriptors(pid, *call)
        if carried and any(_goal(pid, fd) == MAILBOX for fd in own):
            own = [*own, *carried]
        found[tid] = list(dict.fromkeys(own))
    return found


def _descriptors(pid: int, name: str, arguments: list[int]) -> list[int]:
    if name in POLLS:
        rows = _memory(pid, arguments[0], min(arguments[1], MOST_POLLED) * POLLED.size)
        return [fd for fd, _, _ in POLLED.iter_unpack(rows) if fd >= 0]  # poll passes over the others
    if name in SELECTS:
        return _bits(_memory(pid, arguments[1], (min(arguments[0], MOST_POLLED) + 63) // 64 * 8))
    if name in EPOLLS:
        return watched_by(pid, arguments[0])
    return [arguments[0]] if SYSCALLS[name][2] == "fd" else []


def _bits(raw: bytes) -> list[int]:
    return [place for place in range(len(raw) * 8) if raw[place // 8] >> place % 8 & 1]


def _memory(pid: int, address: int, size: int) -> bytes:
    """Nothing where it cannot be read."""
    with (
        contextlib.suppress(OSError, OverflowError),
        Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory,
    ):
        memory.seek(address)
        found = memory.read(size)
        return found if len(found) == size else b""
    return b""


def watched_by(pid: int, epoll: int) -> list[int]:
    """The descriptors that an epoll is about."""
    with contextlib.suppress(OSError):
        return [int(each) for each in TARGET.findall(Path(f"/proc/{pid}/fdinfo/{epoll}").read_text())]
    return []


def epolls(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        numbers = [int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()]
        return [fd for fd in numbers if _goal(pid, fd) == "anon_inode:[eventpoll]"]
    return []


def _goal(pid: int, fd: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/fd/{fd}").readlink())
    return ""


def shared_memory(pid: int) -> tuple[str, ...]:
    """Device and inode of shared memory and semaphores that it has mapped; not what recorders write."""
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        return tuple(sorted({f"{device}:{inode}" for device, inode in SHARED.findall(maps)}))
    return ()
