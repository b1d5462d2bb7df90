"""Finds the ranks of a job, from pids or from a run directory."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from nsadiag.agent import permission, processes
from nsadiag.agent.attaching.joining import init_arguments
from nsadiag.agent.namespaces import pid_of
from nsadiag.agent.processes import Process
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.layout import RunDir, read_json

NO_REASON = "its owner, its user namespace, Yama and seccomp do not show why"
NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT", "NSADIAG_SOCKET_DIR")
BACKEND_THREADS = ("pt_gloo_", "gloo_", "pt_nccl_")


@dataclass(frozen=True, kw_only=True)
class AttachedRank:
    """One rank's process, and what its environment says of it."""

    rank: int
    world_size: int
    process: Process
    environment: dict[str, str]
    meeting: str = (
        ""  # what it gave to init_process_group, where it stands there and its environment does not say
    )


def find_ranks(pids: list[int]) -> tuple[list[AttachedRank], list[str]]:
    """The ranks among the processes and their descendants, and what could not be told.

    Raises UsageError for a pid that is nobody's, or runs no Python; MachineError for one that may not be read.
    """
    found: dict[int, AttachedRank] = {}
    without: list[Process] = []
    for pid in pids:
        check_readable(pid)
        family = [p for p in family_of(pid) if is_python(p.pid)]
        if not family:
            raise no_python(pid)
        ranks = [rank for process in family if (rank := as_rank(process))]
        for rank in ranks:
            _add(found, rank)
        if not ranks:
            grouped = [p for p in family if in_process_group(p.pid)]
            for rank in [] if grouped else _joining(family):
                _add(found, rank)
            without += grouped or family[:1]
    if found:
        return [found[n] for n in sorted(found)], []
    numbered = [
        AttachedRank(rank=number, world_size=len(without), process=process, environment={})
        for number, process in enumerate(without)
    ]
    if len(numbered) == 1:
        return numbered, [f"process {without[0].pid} has no RANK in its environment: taken for rank 0"]
    listed = ", ".join(str(process.pid) for process in without)
    return numbered, [
        f"processes {listed} have no RANK in their environment: taken for ranks in the order of their start"
    ]


def _joining(family: list[Process]) -> list[AttachedRank]:
    """Those that stand in init_process_group, if they are the whole world: one that is not there may be on its way."""
    found = [
        AttachedRank(rank=t.rank, world_size=t.world_size, process=p, environment={}, meeting=t.meeting)
        for p in family
        if (t := init_arguments(p))
    ]
    sizes = {rank.world_size for rank in found}
    return found if len(found) >= max(sizes, default=1) else []


def check_readable(pid: int) -> None:
    """Raises UsageError where there is no such process, MachineError where it may not be read."""
    if processes.stat_fields(pid) is None:
        hidden = (
            "/proc hides other users' processes (hidepid): attach as the user who runs the job, or as root"
        )
        shown = "pgrep -af torchrun, or ps -ef, show what runs; a container's processes have other numbers outside"
        raise UsageError(f"there is no process {pid}", hidden if permission.hides_processes() else shown)
    try:
        processes.read_environment(pid, NEEDED)
    except PermissionError:
        why = "; ".join(permission.obstacles(pid)) or NO_REASON
        raise MachineError(
            f"process {pid} may not be read: {why}",
            f"{permission.remedy(pid)}; nsadiag doctor --pid {pid} tries each source of evidence on it",
        ) from None
    except OSError:
        raise UsageError(f"there is no process {pid}", "it has just ended") from None


def family_of(pid: int) -> list[Process]:
    """The process and its descendants, parents before their children."""
    ordered, pending = [], [pid]
    while pending:
        process = processes.identify(pending.pop(0))
        if process:
            ordered.append(process)
            pending += processes.children(process.pid)
    return ordered


def is_python(pid: int) -> bool:
    try:
        if Path(f"/proc/{pid}/exe").readlink().name.startswith("python"):
            return True
        return "libpython" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def in_process_group(pid: int) -> bool:
    """Whether threads of a backend run in it: no launcher has them, and no fork of a rank inherits them."""
    return any(comm.startswith(BACKEND_THREADS) for comm in _threads(pid))


def _threads(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found.append((task / "comm").read_text().strip())
    return found


def no_python(pid: int) -> UsageError:
    """The error for a process that, with all its descendants, runs none."""
    return UsageError(
        f"process {pid} ({_name(pid)}) runs no Python",
        "give the pid of a rank, or of its launcher: pgrep -af torchrun",
    )


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def as_rank(process: Process) -> AttachedRank | None:
    environment = processes.environment(process.pid, NEEDED)
    try:
        rank, world_size = int(environment["RANK"]), int(environment.get("WORLD_SIZE", 1))
    except (KeyError, ValueError):
        return None
    return AttachedRank(rank=rank, world_size=world_size, process=process, environment=environment)


def _add(found: dict[int, AttachedRank], new: AttachedRank) -> None:
    """Loaders' workers inherit RANK: of a family the first, which is the topmost, is the rank."""
    known = found.setdefault(new.rank, new)
    if known is new or known.process == new.process:
        return
    if new.process.pid not in {p.pid for p in processes.with_children([known.process])}:
        raise UsageError(
            f"processes {known.process.pid} and {new.process.pid} are both rank {new.rank}",
            "give the pids of one job only",
        )


def check_alive(source: RunDir) -> None:
    """Raises UsageError if no rank of that run is alive."""
    metas = [meta for rank in source.ranks() if "pid" in (meta := read_json(rank.meta, {}))]
    if not any(living_process(pid_of(meta), source) for meta in metas):
        raise UsageError(
            f"no rank of {source.path} is alive", f"nsadiag analyze {source.path} judges what it left"
        )


def living_process(pid: int, source: RunDir) -> Process | None:
    """The process of a rank of that run, unless its pid was given to somebody else meanwhile."""
    process = processes.identify(pid)
    if process is None or not processes.is_alive(process):
        return None
    named = processes.environment(pid, ("NSADIAG_RUN_DIR",)).get("NSADIAG_RUN_DIR")
    return process if named and Path(named).resolve() == source.path.resolve() else None
