"""Ranks to look for, from pids or from a run directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nsadiag.agent import processes
from nsadiag.agent.attaching.finding import AttachedRank, living_process
from nsadiag.agent.namespaces import pid_of
from nsadiag.agent.whereabouts import Sought
from nsadiag.evidence.layout import RunDir, read_json


def sought_among(ranks: Iterable[AttachedRank]) -> list[Sought]:
    """Ranks found by their pids; one that `nsadiag run` started has a recorder."""
    found = []
    for rank in ranks:
        pid = rank.process.pid
        told = processes.environment(pid, ("NSADIAG_RUN_DIR", "NSADIAG_SOCKET_DIR"))
        run, sockets = told.get("NSADIAG_RUN_DIR"), told.get("NSADIAG_SOCKET_DIR")
        found.append(
            Sought(
                rank=rank.rank,
                pid=pid,
                alive=True,
                recorder=RunDir(path=Path(run)).rank(rank.rank).blackbox if run else None,
                socket=Path(sockets) / f"{rank.rank}.sock" if sockets else None,
            )
        )
    return found


def sought_in(run: RunDir) -> list[Sought]:
    """The ranks of a run that is still going on, or was left as it stood."""
    found = []
    for rank in run.ranks():
        meta = read_json(rank.meta, {})
        if "pid" not in meta:
            continue
        pid = pid_of(meta)
        process = living_process(pid, run)
        told = processes.environment(pid, ("NSADIAG_SOCKET_DIR",)) if process else {}
        sockets = told.get("NSADIAG_SOCKET_DIR")
        found.append(
            Sought(
                rank=rank.rank,
                pid=pid,
                alive=process is not None,
                recorder=rank.blackbox,
                socket=Path(sockets) / f"{rank.rank}.sock" if sockets else None,
            )
        )
    return found
