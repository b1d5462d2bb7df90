"""Trials of a job in copies of its folder: rehearsals that `nsadiag check` makes, and a launch under `nsadiag run`."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nsadiag.commands.fix.warm import WarmTrials, witnessed
from nsadiag.deadlines import programs
from nsadiag.engines.local import WarmLauncher
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.repair.change import Change
from nsadiag.repair.job import Job, copied, texts_of
from nsadiag.repair.record import Record, read_record

AROUND_S = 120.0  # besides the job's own time: start-up, snapshots and the verdict
TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Trials:
    """`seconds`: the time of one trial."""

    job: Job
    seconds: float

    def rehearse(self, change: Change | None, ranks: int, seed: int) -> Record:
        """One rehearsal. What it leaves is gone afterwards."""
        with (
            copied(self.job, texts_of(change)) as copy,
            tempfile.TemporaryDirectory(prefix="nsadiag-rehearsal-") as room,
        ):
            out = Path(room).resolve() / "run"
            self._nsadiag("check", copy, out, ranks, witnessed(change, seed))
            return read_record(out, copy)

    cold = None  # they all are

    def launch(self, change: Change, unwanted: threading.Event) -> str:
        """The outcome of a real launch; `unknown` where there was no verdict, as where it was ended by the event."""
        with (
            copied(self.job, texts_of(change)) as copy,
            tempfile.TemporaryDirectory(prefix="nsadiag-launch-") as room,
        ):
            out = Path(room).resolve() / "run"
            self._nsadiag("run", copy, out, self.job.ranks, {}, unwanted)
            return str(read_json(RunDir(path=out).verdict, {}).get("outcome", "unknown"))

    def _nsadiag(
        self, command: str, copy: Path, out: Path, ranks: int, more: Mapping[str, str],
        unwanted: threading.Event | None = None,
    ) -> None:  # fmt: skip
        limit = "--seconds" if command == "check" else "--timeout"
        line = [
            sys.executable,
            "-m",
            "nsadiag",
            command,
            "--out",
            str(out),
            limit,
            f"{self.seconds:g}",
            "--json",
            "--",
        ]
        paths = {name: self.job.led(os.environ[name], copy) for name in ("PYTHONPATH",) if name in os.environ}
        try:
            programs.run(
                [*line, *self.job.command_of(ranks, copy)],
                seconds=self.seconds + AROUND_S,
                cwd=copy / self.job.cwd.relative_to(self.job.folder),
                env={**os.environ, **paths, **more},
                stderr_tail=TAIL_BYTES,
                unwanted=unwanted,
            )
        except programs.Unfinished:
            return


@dataclass(frozen=True, kw_only=True)
class BothTrials:
    """Cold trials, and warm ones for whatever needs no process of its own."""

    trials: Trials
    warm: WarmTrials

    def rehearse(self, change: Change | None, ranks: int, seed: int) -> Record:
        return self.warm.rehearse(change, ranks, seed)

    def cold(self, change: Change | None, ranks: int, seed: int) -> Record:
        """One of processes of their own, if that may matter; else a warm one."""
        trials = self.trials if self.warm.depends_on_salt(change) else self.warm
        return trials.rehearse(change, ranks, seed)

    def launch(self, change: Change, unwanted: threading.Event) -> str:
        return self.trials.launch(change, unwanted)


@contextlib.contextmanager
def trials_of(
    job: Job, seconds: float, launcher: WarmLauncher | None = None
) -> Iterator[BothTrials | Trials]:
    """Trials that leave nothing behind. `launcher`: a warm one of the caller's, for jobs that set no PYTHONPATH."""
    cold = Trials(job=job, seconds=seconds)
    with tempfile.TemporaryDirectory(prefix="nsadiag-fix-") as room:
        with WarmTrials(job=job, seconds=seconds, room=Path(room).resolve(), launcher=launcher) as warm:
            yield BothTrials(trials=cold, warm=warm) if warm.is_possible else cold
