"""Trials of a job in copies of its folder: rehearsals that `nsadiag check` makes, and a launch under `nsadiag run`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nsadiag.deadlines import programs
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.rehearsal import WITNESS
from nsadiag.repair.change import Change
from nsadiag.repair.job import Job, copied
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
            copied(self.job, _texts(change)) as copy,
            tempfile.TemporaryDirectory(prefix="nsadiag-rehearsal-") as room,
        ):
            out = Path(room).resolve() / "run"
            self._nsadiag("check", copy, out, ranks, {WITNESS: str(seed)})
            return read_record(out, copy)

    def launch(self, change: Change) -> str:
        """The outcome of a real launch; `unknown` where there was no verdict."""
        with (
            copied(self.job, _texts(change)) as copy,
            tempfile.TemporaryDirectory(prefix="nsadiag-launch-") as room,
        ):
            out = Path(room).resolve() / "run"
            self._nsadiag("run", copy, out, self.job.ranks, {})
            return str(read_json(RunDir(path=out).verdict, {}).get("outcome", "unknown"))

    def _nsadiag(self, command: str, copy: Path, out: Path, ranks: int, more: Mapping[str, str]) -> None:
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
            )
        except programs.Unfinished:
            return


def _texts(change: Change | None) -> dict[str, str]:
    return {file.path: file.after for file in change.files} if change else {}
