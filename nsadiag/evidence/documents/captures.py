"""One look at one rank, besides stacks and the kernel's view: answers.json, gaps.json, tasks.json; and NCCL's own account (RAS): ras.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsadiag.evidence.documents.python_stacks import StackFrame
from nsadiag.evidence.documents.values import Pid, Whole


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Evidence that could not be had."""

    gap: str
    capture: str = ""
    seconds: float = 0.0
    evidence: dict[str, Any] | None = None  # the state of the process


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One source: whether it answered, and if not, why not."""

    answered: bool
    ms: float = 0.0  # that it took
    why: str = ""
    paused: bool = False
    seen: int = 0  # child processes
    of: int = 0
    failures: tuple[Any, ...] = ()
    values: dict[str, str] | None = None  # digests of a worker's variables, by its pid
    calls: dict[str, tuple[tuple[str, ...], ...]] | None = None  # file, function, digest of the arguments


@dataclass(frozen=True, kw_only=True)
class GilOwner:
    """The thread that owned the interpreter lock, and its innermost frame."""

    thread: str | None = None
    os_thread_id: int | None = None
    function: str | None = None
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Answers:
    """All sources, and what they say together."""

    sources: dict[str, Answer] | None = None  # by capture
    state: str | None = None  # of the process, as the kernel has it
    gil_known: bool = False
    gil_owner: GilOwner | None = None  # null if the interpreter lock is free, or nobody knows
    # answers, gil_owned, in_kernel (state D, nobody answers), stopped, silent or unknown
    reads_as: str = ""

    def of(self, source: str) -> Answer:
        """The source's answer; of one that was not asked, that it did not."""
        return (self.sources or {}).get(source, NOT_ASKED)


NOT_ASKED = Answer(answered=False)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The exception that ended a task."""

    type: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of an event loop that waits, or has failed."""

    name: str
    frames: tuple[StackFrame, ...]  # innermost first
    main: bool = False
    waits_for: str | None = None  # the type of the future
    of: tuple[str, ...] = ()  # tasks
    failed: Failed | None = None
    thread: str | None = None  # of the loop, where that is not the main one


@dataclass(frozen=True, kw_only=True)
class CommunicatorRank:
    """One member, by its rank in the communicator."""

    rank: int
    pid: Pid | None = None
    collective_counts: dict[str, Whole] | None = None  # launched so far, by operation


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """One communicator, with the members that answered."""

    hash: str = ""
    size: int = 0
    ranks: tuple[CommunicatorRank, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NcclStatus:
    """All communicators of the job at one moment."""

    communicators: tuple[Communicator, ...] = ()
