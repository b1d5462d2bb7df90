"""Messages of logs as values: each with its line, and the process whose message it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from nsadiag.evidence.documents.exceptions import TracebackFrame

Topic = Literal[
    "cuda", "gpu memory", "memory", "nccl", "network", "gloo", "store", "port", "shared memory", "disk",
    "ddp", "fsdp", "deepspeed", "mismatch", "data", "ray", "interpreter",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One message."""

    is_of_its_speaker: ClassVar[bool] = True  # else of a process that it names, whoever says it

    line: int
    text: str = ""  # the message, with the lines below it that belong to it
    rank: int | None = None  # whose message it is, or of whom it speaks; None where nothing says it
    pid: int | None = None
    host: str = ""
    time: str = ""  # as written


@dataclass(frozen=True, kw_only=True)
class StatedError(Fact):
    """An error whose traceback is elsewhere, or nowhere."""

    topic: Topic
    type: str = "RuntimeError"
    ends_it: bool = True  # whether the process that says it goes down by it


@dataclass(frozen=True, kw_only=True)
class ProcessEnd(Fact):
    """The end of a process as its launcher, scheduler or kernel saw it."""

    is_of_its_speaker: ClassVar[bool] = False

    by: Literal[
        "torchrun",
        "spawn",
        "slurm",
        "ray",
        "kernel",
        "kubernetes",
        "deepspeed",
        "accelerate",
        "shell",
        "lightning",
        "mpirun",
        "composer",
        "vllm",
    ]
    why: Literal["unknown", "memory", "time limit", "preemption", "node failure", "eviction", "cancelled"] = (
        "unknown"
    )
    code: int | None = None
    signal: str = ""  # its name, or what a shell says of it: SIGKILL, Killed, Segmentation fault
    local_rank: int | None = None
    name: str = ""  # of the process, the actor or the pod
    count: int = 1  # of processes that ended so
    ranks: tuple[int, ...] = ()  # where one line is of several, which often are consequences of another end


@dataclass(frozen=True, kw_only=True)
class ProcessStart(Fact):
    """A process that the launcher started for a local rank."""

    is_of_its_speaker: ClassVar[bool] = False

    local_rank: int


@dataclass(frozen=True, kw_only=True)
class ClosedProcess(Fact):
    """A process that the launcher closed because another one had failed: `pid` is a victim, and of this job."""

    is_of_its_speaker: ClassVar[bool] = False

    signal: str = ""


@dataclass(frozen=True, kw_only=True)
class HardwareFault(Fact):
    """A fault of a GPU or its links, as the driver or the library reports it."""

    kind: Literal["xid", "ecc", "nvlink", "lost", "thermal"]
    number: int | None = None  # the Xid
    device: str = ""  # PCI address, or number


@dataclass(frozen=True, kw_only=True)
class TransportWarning(Fact):
    """A warning of NCCL's: what it saw before torch raised something."""

    about: Literal[
        "network",
        "shared memory",
        "cuda",
        "socket",
        "duplicate gpu",
        "version",
        "memory",
        "mismatch",
        "other",
    ]
    device: int | None = None
    peer: str = ""  # address or host at the other end
    status: int | None = None  # of the work request, in InfiniBand's numbers


@dataclass(frozen=True, kw_only=True)
class CommunicatorStep(Fact):
    """A member of a communicator of NCCL's begins, or has ended, to create it."""

    communicator: str
    size: int
    member: int  # its rank in the communicator
    complete: bool


@dataclass(frozen=True, kw_only=True)
class StuckWatchdog(Fact):
    """A watchdog that made no progress: a call of CUDA's or NCCL's blocks it, or a thread that holds the GIL."""

    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class TakenDown(Fact):
    """A rank whose watchdog ends it: a collective of its own timed out or failed, and another line may say which."""


@dataclass(frozen=True, kw_only=True)
class Standing(Fact):
    """A rank's progress in a group when another one, or itself, timed out."""

    group: str
    enqueued: int
    completed: int
    first_by: int | None = None  # the rank that timed out; None where it is this one


@dataclass(frozen=True, kw_only=True)
class CollectiveStack(Fact):
    """The call of a collective that timed out or failed."""

    frames: tuple[TracebackFrame, ...]  # outermost first


@dataclass(frozen=True, kw_only=True)
class NativeStack(Fact):
    """A thread's stack as a debugger prints it."""

    thread: int | None = None  # the debugger's number: 1 is the main one
    functions: tuple[str, ...] = ()  # those that have a name, innermost first
    frames: tuple[TracebackFrame, ...] = ()  # Python's, outermost first, where it was asked for them


@dataclass(frozen=True, kw_only=True)
class StoreWait(Fact):
    """A key of torch's store that nobody set in time."""

    key: str
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Rendezvous(Fact):
    """A meeting that some did not come to."""

    joined: int
    expected: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class PortTaken(Fact):
    """A port that another process listens on."""

    port: int | None = None


@dataclass(frozen=True, kw_only=True)
class LostPeer(Fact):
    """A connection that failed or that the other end closed."""

    peer: str = ""  # the address
    port: int | None = None
    seconds: float | None = None  # for how long it was waited for


@dataclass(frozen=True, kw_only=True)
class UnplacedRequest(Fact):
    """A request of resources that Ray has not placed."""

    asks: str = ""  # as Ray writes it; empty where the line does not say


@dataclass(frozen=True, kw_only=True)
class RankDisagreement(Fact):
    """A library's own check that found a rank unlike rank 0."""

    unlike: int
    here: str = ""
    at_rank_0: str = ""


@dataclass(frozen=True, kw_only=True)
class WorldSize(Fact):
    """A count of processes or nodes that the job was started with."""

    size: int
    of: Literal["world", "node", "nodes"] = "world"


@dataclass(frozen=True, kw_only=True)
class Version(Fact):
    """A version of something that the job runs on."""

    of: Literal["torch", "nccl", "cuda", "driver", "deepspeed", "transformers", "ray", "python"]
    version: str


@dataclass(frozen=True, kw_only=True)
class Setting(Fact):
    """A variable of the environment, as a line shows it."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class ToolAnswer(Fact):
    """A finding of another tool, with the ranks that it names."""

    tool: Literal["torchfrtrace", "nccl ras", "monitored barrier", "horovod"]
    kind: Literal["missing", "mismatch", "not all joined", "dead", "error", "operations"]
    ranks: tuple[int, ...] = ()
    number: int | None = None  # of the last operation that they launched


@dataclass(frozen=True, kw_only=True)
class Unread(Fact):
    """Lines that look like an error and that no row understands: the first of them, and how many."""

    count: int = 1
