"""The interface of an engine whose agents a scheduler starts: the same command on each of some nodes."""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nsadiag.errors import UsageError

# What the engine puts into the environment of each of a task's commands: see `seat`.
NODE_RANK = "NSADIAG_NODE_RANK"  # from 0 on; node 0's is the host that MASTER_ADDR names
NNODES = "NSADIAG_NNODES"
MASTER_ADDR = "NSADIAG_MASTER_ADDR"
JOB_ID = "NSADIAG_JOB_ID"  # as `submit` gave it back

Phase = Literal["pending", "running", "ended", "untold"]


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options for starting jobs; an engine refuses those it has no use for (`only`)."""

    name: str = "nsadiag"
    nodes: int = 1  # at most, for one cell
    partition: str | None = None
    account: str | None = None
    gpus_per_node: int | None = None
    time_s: float | None = None  # of one cell's job; None: as long as the cell may take
    at_once: int | None = None  # jobs; None: as many as there is room for
    address: str | None = None  # of the cluster
    runtime_env: Mapping[str, Any] | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False  # `plan` alone will be called: nothing has to be there that could run a job

    def only(self, engine: str, *names: str) -> None:
        """Raises UsageError where anything else is given than the options of these names."""
        spelled = {"more": "--slurm"}
        for option in dataclasses.fields(self):
            is_for_all = option.name in ("name", "nodes", "time_s", "at_once", "dry_run", *names)
            if not is_for_all and getattr(self, option.name) not in (None, {}):
                flag = spelled.get(option.name, f"--{option.name.replace('_', '-')}")
                raise UsageError(
                    f"{flag} is for another engine, not for {engine}", "leave one of the two out"
                )


@dataclass(frozen=True, kw_only=True)
class Task:
    """One cell's job: a module of Python's, run once on each of its nodes, in the directory that nsadiag was started in."""

    name: str
    module: str
    arguments: Sequence[str]
    nodes: int
    ranks_per_node: int
    gpus_per_node: int = 0  # that it cannot do without
    seconds: float  # after so long it has ended by itself, one way or another

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module, *self.arguments]


def seat(*, job_id: str, node_rank: int, nnodes: int, master_addr: str) -> dict[str, str]:
    """The variables for a task's command on one of its nodes."""
    return {JOB_ID: job_id, NODE_RANK: str(node_rank), NNODES: str(nnodes), MASTER_ADDR: master_addr}


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The scheduler's state of a job. It may lag behind, or forget a job: the files that the job wrote count."""

    phase: Phase
    words: str = ""  # its own: why it waits, where it runs
    trouble: str = ""  # of a job that runs: what a person should hear of at once


class BatchEngine(ABC):
    """Made of BatchOptions; `engines.registry` finds those of others by entry point.

    Its constructor raises UsageError for options that it has no use for, and MachineError where nothing can be submitted
    from here, unless `dry_run` is among them.
    """

    ask_s = 5.0  # between two calls of `states`: a scheduler has others to serve

    @abstractmethod
    def plan(self, tasks: Sequence[Task], logs: Path) -> str:
        """The submission that `submit` would hand over, as text."""

    @abstractmethod
    def submit(self, tasks: Sequence[Task], logs: Path) -> list[str]:
        """An id for each task. Their output goes to files in `logs`. Raises NsadiagError where they are refused."""

    @abstractmethod
    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """By id; one that it has never heard of has ended."""

    @abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """Ends them, or sees that they never start."""

    def epitaph(self, job_id: str, logs: Path) -> list[tuple[str, Path | None]]:
        """The known reasons for a job's end, each with the file that states it, where there is one."""
        return []

    def close(self) -> None:
        """Called last: lets go of whatever it holds for jobs that might have come."""
        return
