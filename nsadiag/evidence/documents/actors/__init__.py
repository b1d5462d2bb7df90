"""A job whose processes wait for each other by calls, not as ranks of one launcher: ray.json or roles.json, and waits.json.

Of a job of Ray's the cluster's control store and the processes themselves tell; of one of several launchers, the processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.documents.values import Pid, Rank, Whole

OVER = ("FINISHED", "FAILED")
RUNNING = "RUNNING"


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """One raylet's machine."""

    id: str
    host: str = ""
    address: str = ""
    alive: bool = True
    resources: dict[str, float] | None = None
    available: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class RayActor:
    """An actor of the job, alive or not."""

    id: str
    cls: str = ""
    name: str = ""  # as the user named it
    state: str = ""  # ALIVE, DEAD, RESTARTING, PENDING_CREATION, DEPENDENCIES_UNREADY
    pid: int = 0
    node: str = ""
    restarts: int = 0
    death: str = ""
    needs: dict[str, float] | None = None
    owner: str = ""  # worker id of the process that created it


@dataclass(frozen=True, kw_only=True)
class RayTask:
    """A call of an actor's method, or of a remote function."""

    id: str
    name: str = ""  # "Rollout.generate"
    kind: str = ""  # ACTOR_TASK, ACTOR_CREATION_TASK, NORMAL_TASK, DRIVER_TASK
    state: str = ""
    actor: str = ""
    parent: str = ""  # task that called it
    worker: str = ""
    pid: int = 0
    attempt: int = 0
    needs: dict[str, float] | None = None
    created_ms: float | None = None
    started_ms: float | None = None
    ended_ms: float | None = None
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has returned or failed for good."""
        return self.state in OVER

    @property
    def method(self) -> str:
        """The function's own name."""
        return self.name.rpartition(".")[2].rpartition(":")[2]


@dataclass(frozen=True, kw_only=True)
class RayProcess:
    """A process of the job; `number` is that of its folder under ranks/."""

    number: Rank
    pid: Pid
    node: str
    worker: str = ""
    actor: str = ""
    driver: bool = False
    rank: Rank | None = None  # of Ray Train's workers, and of roles
    role: str = ""  # in a job of several launchers
    parent: int = 0  # process that started it, of roles
    port: int = 0  # of Ray's own server in it
    queued: int = 0  # calls that it has received and not begun


@dataclass(frozen=True, kw_only=True)
class RayRival:
    """An actor of another job, which holds resources of the cluster."""

    job: str
    entrypoint: str = ""
    cls: str = ""
    name: str = ""
    node: str = ""
    needs: dict[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """ray.json, or roles.json: the job between two moments, `moved` naming what changed in it."""

    id: str
    entrypoint: str = ""
    nodes: tuple[RayNode, ...] = ()
    actors: tuple[RayActor, ...] = ()
    tasks: tuple[RayTask, ...] = ()
    processes: tuple[RayProcess, ...] = ()
    rivals: tuple[RayRival, ...] = ()
    moved: tuple[str, ...] = ()  # calls that were made, begun or over between the captures
    gaps: tuple[str, ...] = ()
    user_code: tuple[str, ...] = ()  # packages that count as the user's
    lost_tasks: int = 0  # that the control store no longer has
    watched_s: float = 0.0
    taken_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ObjectWait:
    """A thread in ray.get or ray.wait."""

    thread: int  # as the system numbers it
    call: str  # "get" or "wait"
    objects: tuple[str, ...] = ()  # ids; the first 24 bytes of each are those of the task that makes it
    least: int | None = None  # of ray.wait: how many it wants
    limit_s: float | None = None
    unread: int = 0  # objects whose id could not be read


@dataclass(frozen=True, kw_only=True)
class Joining:
    """A process in init_process_group."""

    rank: Rank
    world_size: Whole
    at: str = ""
    by_user: bool = False  # a group beside the default one, by a function of the user's own


@dataclass(frozen=True, kw_only=True)
class SocketWait:
    """A thread in a system call on a socket or pipe; of several of one thread, any may end the call."""

    thread: int  # as the system numbers it
    fd: int


@dataclass(frozen=True, kw_only=True)
class Served:
    """A thread that answers a client's request."""

    thread: int  # as the system numbers it
    client: str  # host:port


@dataclass(frozen=True, kw_only=True)
class TaskWait:
    """A task of an event loop that is suspended, with its coroutines, innermost first."""

    task: int  # one number for each, as long as it lives
    thread: int  # in which its loop runs, as the system numbers it; 0 where that is not known
    frames: tuple[StackFrame, ...]
    future: int = 0  # the task that it waits for, or something else
    # Tasks and threads that could reach what it waits for by their variables; if it waits for tasks, these.
    givers: tuple[int, ...] = ()
    joins: bool = False  # it waits for tasks


@dataclass(frozen=True, kw_only=True)
class ActorWaits:
    """waits.json: what a process's threads wait for that only its memory tells; `lines` is code by `file:line`."""

    objects: tuple[ObjectWait, ...] = ()
    joining: Joining | None = None
    sockets: tuple[SocketWait, ...] = ()
    serves: tuple[Served, ...] = ()
    tasks: tuple[TaskWait, ...] | None = None  # None where they could not be read, or there is no event loop
    memory: tuple[str, ...] = ()  # device and inode of memory and semaphores that it may share with others
    # Sockets by which torch's backend talks to peers; None where that could not be told from the rest.
    transport: tuple[int, ...] | None = None
    # By thread, a digest of the values of its variables: whether they are the same at another capture is all that it tells.
    values: dict[str, str] | None = None
    named_groups: tuple[int, ...] = ()  # threads in a collective of a group that their call names
    lines: dict[str, str] | None = None
    gaps: tuple[str, ...] = ()
