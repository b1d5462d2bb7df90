"""The captures of one job, numbered in the order they are taken; those of looks long past are thrown away."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from nsadiag.agent import processes
from nsadiag.agent.captures.capturing import capture_all
from nsadiag.agent.captures.target import Target
from nsadiag.agent.job.launch import Job
from nsadiag.agent.watching.state import Look, RankState
from nsadiag.evidence.layout import CaptureDir, RunDir, read_json, this_node

KEEP_LOOKS = 3
MANY_MOTIONS = 64  # ranks, of which watch.json would grow by megabytes a look
MOST_UNKNOWN = 16  # processes that are looked at where no rank is known


class CaptureSeries:
    """The captures taken so far, and the paths and sockets by which they are taken."""

    def __init__(self, job: Job, directory: RunDir, *, with_locals: bool) -> None:
        self._job, self._directory, self._with_locals = job, directory, with_locals
        self.count = 0

    def take(self, ranks: Iterable[RankState], *, none_known: bool) -> int:
        """One capture of each of the ranks, and its number; where `none_known`, of whatever runs."""
        self.count += 1
        targets = [self.target(rank, self.count) for rank in ranks]
        if none_known:
            targets = self._unknown_processes()
        capture_all(targets, native=False, with_locals=self._with_locals)
        return self.count

    def target(self, rank: RankState, number: int) -> Target:
        """A rank that runs, for its capture of this number."""
        assert rank.process is not None
        return Target(
            pid=rank.process.pid,
            directory=rank.directory.capture(number),
            socket=self._job.socket_dir / f"{rank.directory.rank}.sock",
            with_locals=self._with_locals,
        )

    def gpus(self, number: int) -> dict[str, Any]:
        """The state of this node's GPUs then."""
        found = read_json(self._of_node(number) / "gpu.json", {})
        return found if isinstance(found, dict) else {}

    def forget(self, looks: list[Look], ranks: Collection[RankState]) -> None:
        """A job that is silent and busy for hours is looked at hundreds of times: the disk stays bounded."""
        for look in looks[:-KEEP_LOOKS][-1:]:
            if len(look.motions) > MANY_MOTIONS:
                look.motions = []
            for number in (look.first, look.second):
                shutil.rmtree(self._of_node(number), ignore_errors=True)
                for rank in ranks:
                    shutil.rmtree(rank.directory.capture(number).path, ignore_errors=True)

    def _of_node(self, number: int) -> Path:
        return self._directory.node_capture(this_node(), number).path

    def _unknown_processes(self) -> list[Target]:
        """Targets where no rank ever appeared: the stacks of whatever runs are all there is to show."""
        folder = self._directory.node(this_node()) / "processes"
        found = sorted(processes.of_run(self._job.run_id), key=lambda p: p.pid)
        return [
            Target(
                pid=p.pid,
                directory=CaptureDir(path=folder / str(p.pid) / "captures" / f"{self.count:02d}"),
                socket=None,
            )
            for p in found[:MOST_UNKNOWN]
        ]
