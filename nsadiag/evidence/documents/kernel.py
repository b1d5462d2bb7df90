"""The kernel's view of one process at one moment: proc.json."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nsadiag.evidence.documents.values import Pid, Whole

ZOMBIE = "Z"


@dataclass(frozen=True, kw_only=True)
class KernelThread:
    """One thread of the process."""

    tid: int
    state: str
    cpu_s: float
    name: str = ""
    queued_s: float | None = None
    wchan: str | None = None
    sleeps_until_mono_ns: Whole | None = None
    waits_until_mono_ns: Whole | None = None
    wait_limit_s: float | None = None
    awaits: tuple[int, ...] = ()  # children without which it does not go on, and theirs


@dataclass(frozen=True, kw_only=True)
class KernelChild:
    """A process that descends from it."""

    pid: Pid
    state: str
    cpu_s: float
    parent: int = 0
    command: str = ""
    queued_s: float | None = None
    sleeps_until_mono_ns: Whole | None = None
    threads_sleep_until_mono_ns: tuple[Whole, ...] = ()  # other threads than its main one
    wait_limit_s: float | None = None
    wchan: str | None = None
    locked_for_good: bool = False
    turns: int | None = None  # voluntary context switches

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended yet."""
        return self.state != ZOMBIE


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """An open file, socket or pipe."""

    fd: int
    kind: str  # tcp, unix, file or pipe, or another word of the kernel's
    local: str = ""
    peer: str = ""
    state: str = ""
    unsent: int = 0  # bytes
    unread: int = 0  # bytes
    inode: int = 0
    peer_inode: int = 0  # of a unix socket: its other end; 0 where that is not known
    path: str = ""
    position: int | None = None


@dataclass(frozen=True, kw_only=True)
class Descriptors:
    """The open files of the process; `open` holds the main ones."""

    count: int = 0
    kinds: dict[str, int] | None = None
    open: tuple[Descriptor, ...] = ()  # 64 at most


@dataclass(frozen=True, kw_only=True)
class LockHolder:
    """The process that holds the file lock for which the main thread waits."""

    pid: Pid
    cpu_s: float
    command: str = ""
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class Spawner:
    """The process that started this one by multiprocessing, and its family."""

    pid: Pid
    turns: int
    cpu_s: float = 0.0
    family_cpu_s: float = 0.0
    sleeps_until_mono_ns: tuple[Whole, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KernelProcess:
    """A process, its threads and its children."""

    t_mono_ns: Whole
    pid: Pid
    state: str
    cpu_s: float
    machine: str = ""  # as uname says, whose numbers of system calls these are
    rss_mib: float | None = None
    wchan: str | None = None
    syscall: str | None = None
    kernel_stack: str | None = None
    sleeps_until_mono_ns: Whole | None = None
    waits_until_mono_ns: Whole | None = None
    wait_limit_s: float | None = None
    oom_score: Whole | None = None
    status: dict[str, str] | None = None
    io: dict[str, Whole] | None = None
    threads: tuple[KernelThread, ...] = ()
    children: tuple[KernelChild, ...] = ()
    fds: Descriptors = Descriptors()
    lock_held_by: LockHolder | None = None
    mutex_held_by: int | None = None  # the thread that owns the mutex for which the main one waits
    # its children that hold the other end of the pipe at which it stands, and whoever feeds them
    pipe_held_by: tuple[int, ...] | None = None
    spawner: Spawner | None = None  # of a process that multiprocessing started

    @property
    def main(self) -> KernelThread | None:
        """Its main thread."""
        return next((thread for thread in self.threads if thread.tid == self.pid), None)

    def seen_from(self, tid: int) -> KernelProcess:
        """The process as if that thread were its main one."""
        row = next((thread for thread in self.threads if thread.tid == tid), None)
        if row is None or tid == self.pid:
            return self
        return replace(
            self,
            state=row.state,
            wchan=row.wchan,
            syscall=None,
            kernel_stack=None,
            sleeps_until_mono_ns=row.sleeps_until_mono_ns,
            waits_until_mono_ns=row.waits_until_mono_ns,
            wait_limit_s=row.wait_limit_s,
            threads=(replace(row, tid=self.pid), *(t for t in self.threads if t.tid not in (tid, self.pid))),
        )

    def name_of(self, tid: int) -> str:
        """The kernel's name of one of its threads; empty of any other."""
        return next((thread.name for thread in self.threads if thread.tid == tid), "")

    @property
    def voluntary_switches(self) -> int:
        """Number of times that the main thread went to sleep."""
        return int((self.status or {}).get("voluntary_ctxt_switches") or 0)

    @property
    def seconds(self) -> float:
        """The moment, on the monotonic clock."""
        return self.t_mono_ns / 1e9


# Where the process could not be looked at.
NO_PROCESS = KernelProcess(t_mono_ns=0, pid=0, state="", cpu_s=0.0)


@dataclass(frozen=True, kw_only=True)
class OomGrowth:
    """A cgroup whose count of processes that the kernel ended because memory had run out has grown."""

    oom_kills_before: int
    oom_kills: int
    used_bytes: int | None = None
    limit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class OomLine:
    """A line of the kernel's log about a process that it ended."""

    pid: Pid
    line: str


@dataclass(frozen=True, kw_only=True)
class OomReport:
    """The record of a node's kernel on processes that it ended because memory had run out."""

    grown: tuple[OomGrowth, ...] = ()
    kernel: tuple[OomLine, ...] = ()
