"""Ends a job: what still writes evidence is waited for, ranks go before launchers, and nobody is left."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from nsadiag.agent import interrupts, processes
from nsadiag.agent.job.launch import Job
from nsadiag.agent.processes import Process
from nsadiag.evidence.layout import RunDir

LAUNCHER_GRACE_S = 5.0
DUMP_QUIET_S = 1.0
DUMP_AT_MOST_S = 15.0
SWEEPS = 3
# Where torch and CUDA put what they dump by themselves: prefixes, to which a rank or a pid is added.
DUMP_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "CUDA_COREDUMP_FILE")


def end_job(
    job: Job, run: RunDir, ranks: Iterable[Process], speaks: bool, seen_dying: Callable[[], None]
) -> set[Process]:
    """Ends every process of the job, and returns those that even SIGKILL did not end (state D).

    `seen_dying` is called when the ranks are gone and their launchers, which would reap them, still stand. `speaks`: a launcher
    that has lost its ranks says what it saw, and is waited for.
    """
    job.ending()
    ranks = {rank for rank in ranks if processes.is_alive(rank)}
    family = processes.with_children(ranks)
    wait_for_dumps(run, ranks)
    launchers = processes.with_children(job.roots()) - family
    may_restart = any(_has_restarts_left(rank) for rank in ranks)
    parents = {processes.parent(rank.pid) for rank in ranks}
    # A launcher that finds its ranks dead may start new ones: not before we have told it to end.
    for launcher in launchers:
        processes.send(launcher, signal.SIGSTOP)
    # Ranks first: one that loses a loader's worker would raise an error that was never the job's.
    left = processes.end(ranks)
    left |= processes.end(family - ranks)
    seen_dying()
    if ranks and speaks and not may_restart:
        _let_speak(job, {p for p in launchers if p.pid in parents})
    left |= processes.end(launchers)
    for _ in range(SWEEPS):
        found = job.family() - left
        if not found:
            break
        left |= processes.end(processes.with_children(found))
    if job.poll() is None:
        job.abandon()
    return {process for process in left if processes.is_alive(process)}


def _let_speak(job: Job, parents: set[Process]) -> None:
    """A launcher that has lost its ranks ends by itself, and says what it saw."""
    for launcher in parents:
        processes.send(launcher, signal.SIGCONT)
    deadline = time.monotonic() + LAUNCHER_GRACE_S
    # One that stays warm for other cells is no process of the job: it only answers.
    while job.poll() is None and time.monotonic() < deadline and not interrupts.hurried():
        if parents and not any(processes.is_alive(p) for p in parents):
            return
        time.sleep(0.02)


def _has_restarts_left(rank: Process) -> bool:
    found = processes.environment(rank.pid, ("TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT"))
    with contextlib.suppress(ValueError):
        return int(found.get("TORCHELASTIC_MAX_RESTARTS", 0)) > int(
            found.get("TORCHELASTIC_RESTART_COUNT", 0)
        )
    return False


def wait_for_dumps(run: RunDir, ranks: Iterable[Process]) -> None:
    """Returns when nothing writes to a capture or a dump any more; one that never ends is not waited for."""
    prefixes = {path for rank in ranks for path in processes.environment(rank.pid, DUMP_PREFIXES).values()}
    deadline = time.monotonic() + DUMP_AT_MOST_S
    while time.monotonic() < deadline and not interrupts.hurried() and _still_grows(run, prefixes):
        time.sleep(0.1)


def _still_grows(run: RunDir, prefixes: set[str]) -> bool:
    dumps = [path for prefix in prefixes for path in _beginning_with(prefix.partition("%")[0])]
    captures = [path for rank in run.ranks() for path in rank.path.glob("captures/*/.*")]
    return any(_age_s(path) < DUMP_QUIET_S for path in [*dumps, *captures])


def _beginning_with(prefix: str) -> list[Path]:
    folder = Path(prefix).parent
    return [p for p in folder.glob(f"{Path(prefix).name}*") if p.is_file()] if folder.is_dir() else []


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return DUMP_QUIET_S
