"""Processes of a job that have not said which rank they are: what a script starts has no number before it joins a group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

import psutil

from nsadiag.agent.processes import Process, children, parent
from nsadiag.agent.stillness.external_waits import PACED_S
from nsadiag.agent.watching.state import RankState
from nsadiag.evidence.layout import read_json

LATE_S = PACED_S  # of silence, in which the ranks that are there may wait for one that still loads its data
# What multiprocessing starts beside its children, for itself.
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def may_come(ranks: Collection[RankState], quiet_s: float) -> str | None:
    """The reason why ranks that wait may still be joined by a missing one; None where all are there, or nobody is left to come."""
    said = [read_json(rank.directory.meta, {}).get("world_size", 1) for rank in ranks]
    expected = max(map(int, said), default=1)
    if len(ranks) >= expected or quiet_s > LATE_S:
        return None
    pids = unnamed([rank.process for rank in ranks if rank.process])
    return (
        f"{len(ranks)} of {expected} ranks have come, and process {pids[0]} may be another" if pids else None
    )


def unnamed(ranks: list[Process]) -> list[int]:
    """Pids of living processes that run what these ranks run, were started by the same parent, and are none of them."""
    known = {rank.pid for rank in ranks}
    found = set()
    for rank in ranks:
        above = parent(rank.pid)
        if above > 1:
            beside = set(children(above)) - known
            found |= {pid for pid in beside if _program(pid) == _program(rank.pid) and not _helps(pid)}
    return sorted(found)


def _program(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except OSError:
        return None


def _helps(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        line = " ".join(process.cmdline())
        return process.status() == psutil.STATUS_ZOMBIE or any(helper in line for helper in HELPERS)
    return True
