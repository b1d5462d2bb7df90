"""Waits of a process in a job of several launchers, as far as its memory tells: sockets, requests that it answers, a group."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from nsadiag.agent.attaching.joining import joining_of
from nsadiag.agent.attaching.object_waits import lines_of
from nsadiag.agent.captures.python.py_spy import stacks_with_values
from nsadiag.agent.captures.target import CaptureError
from nsadiag.evidence.blocking import SYSCALLS, serves_collectives, syscall_name
from nsadiag.evidence.documents.actors import ActorWaits, Served, SocketWait
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame
from nsadiag.evidence.user_code import is_user

# Functions of the standard library that are told whom they answer.
ANSWERS = re.compile(r"/socketserver\.py$")
CLIENT = re.compile(r"^\(\"?'?([\w.:]+)'?\"?, (\d+)")
CALLS, GROUP = re.compile(r"torch/distributed/c10d_logger\.py$"), "ProcessGroup at 0x"
KEY = os.urandom(16)
POLLED = struct.Struct("ihh")  # struct pollfd
POLLS = ("poll", "ppoll")
EPOLLS = ("epoll_wait", "epoll_pwait")
TARGET = re.compile(r"^tfd:\s+(\d+)", re.MULTILINE)


def role_waits(pid: int) -> ActorWaits:
    """The waits of the process; a gap where its stacks could not be had with their values."""
    calls = {tid: call for tid in _threads(pid) if (call := _call(pid, tid))}
    sockets = tuple(
        SocketWait(thread=t, fd=fd)
        for t, call in calls.items()
        if (fd := _descriptor(pid, *call)) is not None
    )
    transport = _transport(pid, calls)
    try:
        threads = stacks_with_values(pid)
    except (CaptureError, ValueError) as error:
        return ActorWaits(sockets=sockets, transport=transport, gaps=(f"process {pid}: {error}",))
    return ActorWaits(
        joining=joining_of(threads), sockets=sockets, serves=tuple(_served(threads)), transport=transport,
        lines=lines_of(threads), values={str(t.os_thread_id): _digest(t) for t in threads}, named_groups=tuple(t.os_thread_id or 0 for t in threads if _names_a_group(t)),
    )  # fmt: skip


def _threads(pid: int) -> list[int]:
    try:
        return sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _call(pid: int, tid: int) -> tuple[str, list[int]] | None:
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


def _descriptor(pid: int, name: str, arguments: list[int]) -> int | None:
    """The one descriptor that the call is about; None where there are several, or none."""
    if name in POLLS:
        if arguments[1] != 1:
            return None
        with (
            contextlib.suppress(OSError, struct.error),
            Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory,
        ):
            memory.seek(arguments[0])
            return int(POLLED.unpack(memory.read(POLLED.size))[0])
        return None
    return arguments[0] if SYSCALLS[name][2] == "fd" and name not in EPOLLS else None


def _transport(pid: int, calls: dict[int, tuple[str, list[int]]]) -> tuple[int, ...] | None:
    """The sockets that a backend's threads listen to; None where it has none that do so in a way that the kernel shows.

    Such a thread may run just now: what it listens to is told by that no thread of another kind does.
    """
    backends = {tid for tid in _threads(pid) if serves_collectives(_name(pid, tid))}
    others = {args[0] for tid, (name, args) in calls.items() if name in EPOLLS and tid not in backends}
    sets = [fd for fd in _epolls(pid) if fd not in others] if backends else []
    found: set[int] = set()
    for fd in sets:
        with contextlib.suppress(OSError):
            found |= {int(each) for each in TARGET.findall(Path(f"/proc/{pid}/fdinfo/{fd}").read_text())}
    return tuple(sorted(found)) if sets else None


def _epolls(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(path.readlink()) == "anon_inode:[eventpoll]":
                    found.append(int(path.name))
    return found


def _name(pid: int, tid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text()
    except OSError:
        return ""


def _served(threads: Iterable[PythonThread]) -> Iterable[Served]:
    for thread in threads:
        client = next((told for frame in thread.frames if (told := _client(frame))), None)
        if client:
            yield Served(thread=thread.os_thread_id or 0, client=client)


def _digest(thread: PythonThread) -> str:
    """Values may be secret; with a key that is never kept, only their sameness shows."""
    told = [
        (f.filename, v.name, v.repr) for f in thread.frames if is_user(f.filename) for v in f.locals or ()
    ]
    return hashlib.blake2b(repr(told).encode(), key=KEY, digest_size=8).hexdigest()


def _names_a_group(thread: PythonThread) -> bool:
    """Whether the outermost of torch's functions, the one that the user called, was given a group."""
    calls = [f for f in thread.frames if CALLS.search(f.filename)]
    values = [local.repr or "" for f in calls for local in f.locals or () if local.name in ("args", "kwargs")]
    return any(GROUP in value for value in values)


def _client(frame: StackFrame) -> str | None:
    if not ANSWERS.search(frame.filename):
        return None
    told = next((local.repr or "" for local in frame.locals or () if local.name == "client_address"), "")
    found = CLIENT.match(told)
    return f"{found[1]}:{found[2]}" if found else None
