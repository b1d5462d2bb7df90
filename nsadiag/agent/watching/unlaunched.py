"""Watches ranks that were started by nobody we know, from beside them (`with nsadiag.watch(model):`)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from nsadiag.agent import processes
from nsadiag.agent.processes import End, Process
from nsadiag.agent.watching.watch import Watch

ARRIVE_S = 60.0  # for the other ranks of the node to open their black boxes


@dataclass(kw_only=True)
class UnlaunchedJob:
    """Over once the ranks have left the block or died; never ended by us unless that was asked for."""

    socket_dir: Path
    run_id: str
    over: bool = False

    def poll(self) -> int | None:
        return 0 if self.over else None

    def roots(self) -> list[Process]:
        return []

    def family(self) -> set[Process]:
        return processes.of_run(self.run_id)

    def reported_ends(self) -> dict[int, int]:
        return {}

    def ending(self) -> None:
        return

    def abandon(self) -> None:
        return


class UnlaunchedWatch(Watch):
    """The same watch; who leaves the block is done, and nobody is ended but a job that hangs, on request."""

    job: UnlaunchedJob
    expected = 1  # ranks on this node

    def count_from(self, mono_ns: int) -> None:
        """Times are those since the ranks entered the block, which was seconds before we could look on."""
        self._started_ns, self._started = mono_ns, mono_ns / 1e9
        self.suspicions.count_from(self._started)

    def _feel_pulses(self) -> None:
        super()._feel_pulses()
        for rank in self.ranks.values():
            if rank.end is None and rank.said_goodbye:
                code = None if rank.directory.exception.exists() else 0
                rank.end = End(t_mono_ns=time.monotonic_ns(), exit_code=code)
        arrived = len(self.ranks) >= self.expected or time.monotonic() - self._started > ARRIVE_S
        self.job.over = arrived and all(rank.end is not None for rank in self.ranks.values())

    def _end_everything(self) -> None:
        if self.stopped == "hang":
            super()._end_everything()
