"""Waits of a process in a job of several launchers, as far as its memory tells: sockets, requests that it answers, a group."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable

from nsadiag.agent.attaching.joining import joining_of
from nsadiag.agent.attaching.loops.objects import LayoutError
from nsadiag.agent.attaching.loops.tasks import has_loop, task_waits
from nsadiag.agent.attaching.object_waits import lines_of
from nsadiag.agent.attaching.system_calls import (
    EPOLLS,
    Call,
    awaited,
    call_of,
    epolls,
    shared_memory,
    thread_name,
    threads_of,
    watched_by,
)
from nsadiag.agent.captures.python.py_spy import stacks_with_values
from nsadiag.agent.captures.target import CaptureError
from nsadiag.evidence.blocking import serves_collectives
from nsadiag.evidence.documents.actors import ActorWaits, Served, SocketWait, TaskWait
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame, Threads
from nsadiag.evidence.user_code import is_user

# Functions of the standard library that are told whom they answer.
ANSWERS = re.compile(r"/socketserver\.py$")
CLIENT = re.compile(r"^\(\"?'?([\w.:]+)'?\"?, (\d+)")
CALLS, GROUP = re.compile(r"torch/distributed/c10d_logger\.py$"), "ProcessGroup at 0x"
STORE = "pt_tcpstore"  # threads of torch's store, which every rank talks to
KEY = os.urandom(16)


def role_waits(pid: int) -> ActorWaits:
    """The waits of the process; a gap where its stacks could not be had with their values."""
    calls = {tid: call for tid in threads_of(pid) if (call := call_of(pid, tid))}
    sockets = tuple(SocketWait(thread=t, fd=fd) for t, fds in awaited(pid, calls).items() for fd in fds)
    memory = shared_memory(pid)
    try:
        threads = stacks_with_values(pid)
    except (CaptureError, ValueError) as error:
        transport = _transport(pid, calls, {pid})
        return ActorWaits(
            sockets=sockets, transport=transport, memory=memory, gaps=(f"process {pid}: {error}",)
        )
    transport = _transport(pid, calls, {pid, *(t.os_thread_id or 0 for t in threads)})
    tasks, gaps = _tasks(pid, threads)
    return ActorWaits(
        tasks=tasks, memory=memory, gaps=gaps,
        joining=joining_of(threads), sockets=sockets, serves=tuple(_served(threads)), transport=transport,
        lines=lines_of((*threads, *(PythonThread(frames=t.frames) for t in tasks or ()))), values={str(t.os_thread_id): _digest(t) for t in threads}, named_groups=tuple(t.os_thread_id or 0 for t in threads if _names_a_group(t)),
    )  # fmt: skip


def _tasks(pid: int, threads: Threads) -> tuple[tuple[TaskWait, ...] | None, tuple[str, ...]]:
    """The tasks of its event loops, and a gap where these could not be read."""
    if not has_loop(threads):
        return None, ()
    try:
        return task_waits(pid, threads), ()
    except LayoutError as error:
        return None, (f"process {pid}: the tasks of its event loop could not be read: {error}",)


def _transport(pid: int, calls: dict[int, Call], python: set[int]) -> tuple[int, ...] | None:
    """The sockets that a backend's threads listen to; None where it has none that do so in a way that the kernel shows.

    Such a thread may run just now: what it listens to is told by that no thread of another kind does. `python` are threads
    that run Python.
    """
    names = {tid: thread_name(pid, tid) for tid in threads_of(pid)}
    if not any(map(serves_collectives, names.values())):
        return None
    # Some versions of gloo leave their threads the name of the process.
    own = {tid for tid, name in names.items() if serves_collectives(name) or name == names.get(pid)} - python
    stores = {tid for tid, name in names.items() if name.startswith(STORE)}
    mine = own - stores
    others = {args[0] for tid, (name, args) in calls.items() if name in EPOLLS and tid not in mine}
    sets = [fd for fd in epolls(pid) if fd not in others]
    return tuple(sorted({fd for each in sets for fd in watched_by(pid, each)})) if sets else None


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
