"""The interface of an engine whose agents a scheduler starts: the same command on each of some nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

# What the engine puts into the environment of each of a task's commands.
NODE_RANK = "NSADIAG_NODE_RANK"  # from 0 on; node 0's is the host that MASTER_ADDR names
NNODES = "NSADIAG_NNODES"
MASTER_ADDR = "NSADIAG_MASTER_ADDR"
JOB_ID = "NSADIAG_JOB_ID"  # as `submit` gave it back

Phase = Literal["pending", "running", "ended", "untold"]


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options for starting jobs; an engine refuses those it has no use for."""

    name: str = "nsadiag"
    nodes: int = 1  # at most, for one cell
    partition: str | None = None
    account: str | None = None
    gpus_per_node: int | None = None
    time_s: float | None = None  # of one cell's job; None: as long as the cell may take
    at_once: int | None = None  # jobs; None: as many as there is room for
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One cell's job."""

    name: str
    command: list[str]  # to be run once on each of its nodes, in the directory that nsadiag was started in
    nodes: int
    ranks_per_node: int
    seconds: float  # after so long it has ended by itself, one way or another


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The scheduler's state of a job. It may lag behind, or forget a job: the files that the job wrote count."""

    phase: Phase
    words: str = ""  # its own: why it waits, where it runs


class BatchEngine(Protocol):
    """Made of BatchOptions; `engines.registry` finds those of others by entry point."""

    def check(self) -> None:
        """Raises MachineError where nothing can be submitted from here; `plan` may be possible all the same."""

    def plan(self, tasks: Sequence[Task], logs: Path) -> str:
        """The submission that `submit` would hand over, as text."""

    def submit(self, tasks: Sequence[Task], logs: Path) -> list[str]:
        """An id for each task. Their output goes to files in `logs`. Raises NsadiagError where they are refused."""

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """By id."""

    def epitaph(self, job_id: str, logs: Path) -> list[tuple[str, Path | None]]:
        """The known reasons for a job's end, each with the file that states it, where there is one."""

    def cancel(self, ids: Sequence[str]) -> None:
        """Ends them, or sees that they never start."""
