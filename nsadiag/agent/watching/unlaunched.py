"""Watches ranks that were started by nobody we know, from beside them (`with nsadiag.watch(model):`)."""

from __future__ import annotations

import time
from collections.abc import Iterable

from nsadiag.agent import processes
from nsadiag.agent.job.launch import ForeignJob
from nsadiag.agent.processes import End, Process
from nsadiag.agent.watching.state import RankState
from nsadiag.agent.watching.watch import Watch

ARRIVE_S = 60.0  # for the other ranks of the node to open their black boxes


class UnlaunchedJob(ForeignJob):
    """Over once the ranks have left the block or died; never ended by us unless that was asked for."""

    def family(self) -> set[Process]:
        return processes.of_run(self.run_id)


def end_by_goodbyes(ranks: Iterable[RankState]) -> None:
    """Ranks that have said that they leave have ended: their parent is not ours to ask for their exit codes."""
    for rank in ranks:
        if rank.end is None and rank.said_goodbye:
            code = None if rank.directory.exception.exists() else 0
            rank.end = End(t_mono_ns=time.monotonic_ns(), exit_code=code)


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
        end_by_goodbyes(self.ranks.values())
        arrived = len(self.ranks) >= self.expected or time.monotonic() - self._started > ARRIVE_S
        self.job.over = arrived and all(rank.end is not None for rank in self.ranks.values())

    def _end_everything(self) -> None:
        if self.stopped == "hang":
            super()._end_everything()
