"""The last act of a guard that has outlived nsadiag: it writes down how the job ended, and brings rings home."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.agent.job.launch import ForeignJob
from nsadiag.agent.job.scratch import bring_home
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.agent.watching.watch import Watch
from nsadiag.evidence.layout import RunDir

GAP = "nsadiag died while the job ran: from then on nobody took snapshots of it"


@dataclass(kw_only=True)
class PastJob(ForeignJob):
    """A job of which nothing runs any more."""

    pid: int
    exit_code: int

    def poll(self) -> int | None:
        return self.exit_code


class PastWatch(Watch):
    """The same documents as of a job that was watched to its end, by what its ranks left."""

    def __init__(self, job: PastJob, directory: RunDir, started_mono_ns: int) -> None:
        super().__init__(job, directory, WatchOptions())
        self._started_ns, self._started = started_mono_ns, started_mono_ns / 1e9

    def record(self) -> None:
        self._discover(at_once=True)
        self._feel_pulses()
        self.write()
        self.close()

    def _about(self) -> dict[str, Any]:
        return {**super()._about(), "ended_s": time.monotonic() - self._started, "gaps": [GAP]}


def main(run: str, pid: int, exit_code: int, started_mono_ns: int, scratch: list[str]) -> None:
    """Called by the guard, in its last program."""
    directory = RunDir(path=Path(run))
    # A watch that came to its end, or to its verdict, knew more.
    if not directory.watch.exists():
        with contextlib.suppress(OSError):
            job = PastJob(pid=pid, exit_code=exit_code, socket_dir=Path(run))
            PastWatch(job, directory, started_mono_ns).record()
    bring_home(directory)
    for path in scratch:
        shutil.rmtree(path, ignore_errors=True)
