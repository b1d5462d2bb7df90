"""Processes by pid and start time: who belongs to a run, how each ended, and the proof that none is left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from nsadiag.agent import interrupts
from nsadiag.errors import MachineError

RUN_ID = "NSADIAG_RUN_ID"  # in the environment of every process of a run, whoever its parent is
ZOMBIE = "Z"
PROC_HINT = (
    "mount this PID namespace's: mount -t proc proc /proc; with --passthrough the job runs without nsadiag"
)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Process:
    """A pid alone may have been given to someone else by now."""

    pid: int
    started: int  # clock ticks since boot, field 22 of /proc/<pid>/stat


def check_proc() -> None:
    """Raises MachineError where /proc does not show the processes of this machine as they are: a job is followed by it."""
    try:
        seen = Path("/proc/self").readlink().name
        for needed in ("/proc/stat", f"/proc/{seen}/stat", f"/proc/{seen}/environ"):
            Path(needed).read_bytes()
        os.listdir(f"/proc/{seen}/fd")  # noqa: PTH208 - names alone
        os.listdir("/proc")  # noqa: PTH208
    except OSError as error:
        raise MachineError(f"{error.filename} cannot be read: {error.strerror}", PROC_HINT) from None
    if seen != str(os.getpid()):
        raise MachineError("/proc shows another PID namespace than that of this process", PROC_HINT)


def stat_fields(pid: int, thread: int | None = None) -> list[str] | None:
    """Fields of /proc/<pid>/stat, or of one thread's, from the third (state) on; None once it is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in brackets, may itself hold spaces and brackets.
    return text[text.rindex(")") + 2 :].split()


def queued_s(pid: int, thread: int | None = None) -> float | None:
    """Seconds in which the main thread, or another, could have run and got no CPU; None if the kernel does not say."""
    try:
        return int(Path(f"/proc/{pid}/task/{thread or pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def identify(pid: int) -> Process | None:
    """The process that has this pid now."""
    fields = stat_fields(pid)
    return Process(pid, int(fields[19])) if fields else None


def is_alive(process: Process) -> bool:
    """Whether it still runs; a zombie does not."""
    fields = stat_fields(process.pid)
    return bool(fields and int(fields[19]) == process.started and fields[0] != ZOMBIE)


def cpu_s(fields: list[str]) -> float:
    """CPU seconds of its own, by what `stat_fields` gives."""
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def parent(pid: int) -> int:
    """The pid of its parent; 0 once it is gone."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields else 0


def children(pid: int) -> list[int]:
    """Pids of its living children."""
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def environment(pid: int, names: Iterable[str]) -> dict[str, str]:
    """Those of the named variables that the process was started with. Nothing where it may not be read."""
    try:
        return read_environment(pid, names)
    except OSError:
        return {}


def read_environment(pid: int, names: Iterable[str]) -> dict[str, str]:
    """The same. Raises OSError where the process is gone or may not be read."""
    wanted = set(names)
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return {name: value for name, _, value in pairs if name in wanted}


def of_run(run_id: str) -> set[Process]:
    """Every living process that carries the run's mark in its environment, except this one."""
    mark = f"{RUN_ID}={run_id}".encode()
    found = set()
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                process = identify(pid)
                if process and is_alive(process):
                    found.add(process)
    return found


def with_children(processes: Iterable[Process]) -> set[Process]:
    """The processes and all their living descendants."""
    found = set(processes)
    for process in list(found):
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                known = identify(child.pid)
                if known:
                    found.add(known)
    return found


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a process, as far as could be seen: `exit_code` and `signal` are None where nobody could tell."""

    t_mono_ns: int
    exit_code: int | None = None
    signal: int | None = None


class DeathWatch:
    """Wakes the moment a process dies and reads its exit status before its parent has reaped it."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, Process] = {}

    def add(self, process: Process) -> None:
        """Starts watching; a process that is gone already is reported by the next `wait`."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return
        self._watched[descriptor] = process
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> list[tuple[Process, End]]:
        """Sleeps up to `seconds`, less if a watched process dies; returns those that did."""
        if not self._watched:
            time.sleep(seconds)
            return []
        return [self._ended(descriptor) for descriptor, _ in self._poll.poll(seconds * 1000)]

    def _ended(self, descriptor: int) -> tuple[Process, End]:
        now = time.monotonic_ns()
        process = self._watched.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        return process, _read_end(process, now)

    def close(self) -> None:
        for descriptor in self._watched:
            os.close(descriptor)
        self._watched.clear()


def _read_end(process: Process, now: int) -> End:
    """A zombie's stat ends with its wait status (field 52); it is readable until the parent reaps it."""
    fields = stat_fields(process.pid)
    if not fields or int(fields[19]) != process.started or fields[0] != ZOMBIE:
        return End(t_mono_ns=now)
    status = int(fields[49])
    if os.WIFSIGNALED(status):
        return End(t_mono_ns=now, signal=os.WTERMSIG(status))
    return End(t_mono_ns=now, exit_code=os.WEXITSTATUS(status))


def send(process: Process, number: int) -> None:
    """Signals the process if it is still the same one."""
    if is_alive(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def wait_gone(
    processes: Iterable[Process], seconds: float, unless: Callable[[], bool] = lambda: False
) -> set[Process]:
    """Waits until none is left, the time is up or `unless` is so; returns those still alive."""
    deadline = time.monotonic() + seconds
    left = {p for p in processes if is_alive(p)}
    while left and time.monotonic() < deadline and not unless():
        time.sleep(0.02)
        left = {p for p in left if is_alive(p)}
    return left


def end(processes: Iterable[Process], grace_s: float = 3.0) -> set[Process]:
    """SIGTERM to each, SIGKILL to those that stay; returns what even that did not end (state D).

    Nobody has that grace once an interrupt was asked for twice.
    """
    alive = {p for p in processes if is_alive(p)}
    for process in alive:
        send(process, signal.SIGTERM)
        # A stopped process handles SIGTERM only once it is continued.
        send(process, signal.SIGCONT)
    left = wait_gone(alive, grace_s, unless=interrupts.hurried)
    for process in left:
        send(process, signal.SIGKILL)
    return wait_gone(left, 5.0)
