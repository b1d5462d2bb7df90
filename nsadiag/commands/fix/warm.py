"""Rehearsals on ranks that are forked from one warm process: a candidate that is wrong is refused in a second or two.

All ranks of a warm process have its hash salt. What a set of strings hides by that, the cold rehearsals of the proof show.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from nsadiag.agent.job import scratch
from nsadiag.agent.rehearsal.coordinator import coordinating
from nsadiag.agent.rehearsal.ranks import PROGRAM_AT, started_directly
from nsadiag.agent.rehearsal.watch import RehearsalWatch
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.deadlines.deadline import Deadline
from nsadiag.engines.local import WarmLauncher, run_warm
from nsadiag.evidence.layout import RunDir, make_private_dir, read_json, write_json
from nsadiag.evidence.rehearsal import NETWORK, SOCKET, WALK, WITNESS
from nsadiag.evidence.rehearsal.calls import Answer, Rehearsal
from nsadiag.repair.change import Change
from nsadiag.repair.job import Job, copied_to, texts_of
from nsadiag.repair.record import Record, read_record
from nsadiag.source.patterns.hashes import depends_on_salt

ANSWER_S, POLL_S = 30.0, 0.05


class PatientLauncher(WarmLauncher):
    """One that is not replaced where it only takes long to hear that its ranks are gone: trials that differ end so."""

    def restart(self) -> None:
        """A new process, unless the old one answers after all."""
        deadline = Deadline(ANSWER_S)
        while self._guarded.poll() is None and not deadline.has_passed():
            if self.answer() is not None:
                return
            time.sleep(POLL_S)
        super().restart()


@dataclass(kw_only=True)
class WarmTrials:
    """Trials of one job in one folder, one after the other. `seconds`: the time of one."""

    job: Job
    seconds: float
    room: Path
    launcher: WarmLauncher | None = field(default=None, repr=False)  # of the caller's, which outlives this
    _own: WarmLauncher | None = field(default=None, repr=False)

    def __enter__(self) -> WarmTrials:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            self._own.close()

    @property
    def is_possible(self) -> bool:
        """Whether the launcher's line is a plain one of torchrun's, for this Python."""
        return self._program(1) is not None

    def _program(self, ranks: int) -> list[str] | None:
        words = started_directly(self.job.command_of(ranks, self._stage))
        own = words[:2] == [sys.executable, "-m"] and len(words) > PROGRAM_AT
        same = own and Path(words[4]).resolve() == Path(sys.executable).resolve()
        return words[PROGRAM_AT:] if same else None

    @property
    def _stage(self) -> Path:
        """The copy has one place for all trials: paths of modules are looked up where the process began."""
        return self.room / "stage" / self.job.folder.name

    @property
    def _workplace(self) -> Path:
        return self._stage / self.job.cwd.relative_to(self.job.folder)

    def rehearse(self, change: Change | None, ranks: int, seed: int) -> Record:
        """One rehearsal. Raises MachineError where the folder cannot be copied."""
        program = self._program(ranks)
        assert program is not None
        out = self.room / "run"
        with copied_to(self.job, texts_of(change), self._stage), removed(out):
            watch = self._watched(program, RunDir(path=make_private_dir(out)), ranks, change, seed)
            found = _concluded(watch, out)
            write_json(RunDir(path=out).rehearsal, found.to_json())
            return read_record(out, self._stage)

    def depends_on_salt(self, change: Change | None) -> bool:
        """Whether ranks with a hash salt of their own may do otherwise. Raises MachineError where the folder cannot be copied."""
        program = self._program(1)
        if program is None or program[0] == "-m":
            return True
        with copied_to(self.job, texts_of(change), self._stage):
            return depends_on_salt(self._workplace / program[0])

    def _watched(
        self, program: list[str], run: RunDir, ranks: int, change: Change | None, seed: int
    ) -> RehearsalWatch:
        options = WatchOptions(timeout_s=self.seconds, thorough=False)
        with scratch.made() as directory, coordinating(directory) as coordinator:
            env = {SOCKET: str(coordinator.path), NETWORK: "refused", **witnessed(change, seed)}
            watch = run_warm(
                self._warm(), program, run, options, world_size=ranks, probes="light", env=env,
                cwd=self._workplace,
                make_watch=functools.partial(RehearsalWatch, coordinator=coordinator),
            )  # fmt: skip
        assert isinstance(watch, RehearsalWatch)
        return watch

    def _warm(self) -> WarmLauncher:
        if self.launcher is not None:
            return self.launcher
        if self._own is None:
            self._own = PatientLauncher(self.room / "warm.log", preload=(), env=self._environment())
        return self._own

    def _environment(self) -> Mapping[str, str]:
        names = ("PYTHONPATH",) if "PYTHONPATH" in os.environ else ()
        return {name: self.job.led(os.environ[name], self._stage) for name in names}


def witnessed(change: Change | None, seed: int) -> dict[str, str]:
    """Variables of a trial; of the job as it is the path of its code is recorded, too: where ranks part in it."""
    return {WITNESS: str(seed), **({} if change else {WALK: "recorded"})}


@contextlib.contextmanager
def removed(directory: Path) -> Iterator[None]:
    """Nothing is left of it after the block."""
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _concluded(watch: RehearsalWatch, out: Path) -> Rehearsal:
    answer, why = _answer(watch, out)
    calls = watch.proof.calls if watch.proof else ()
    return Rehearsal(answer=answer, why=why, world_size=len(watch.ranks), calls=calls)


def _answer(watch: RehearsalWatch, out: Path) -> tuple[Answer, str]:
    if watch.proof is not None:
        return "differs", watch.proof.why
    if not any(RunDir(path=out).ranks()):
        return "can't", "no rank began"
    if watch.stopped == "hang":
        from nsadiag.analysis.verdict import judge_directory  # all rules come with it

        if judge_directory(out, live=True).certainty == "proven":
            return "differs", "every rank waits for another one"
        return "undecided", "nothing moves, and something outside the job could still move it"
    if raised := next(_raised(out), ""):
        return "raised", raised
    if watch.stopped is not None:
        return "undecided", "it was stopped before its end"
    if watch.job.poll():
        return "raised", "a rank ended with an error"
    return "agreed", "the script came to its end"


def _raised(out: Path) -> Iterator[str]:
    for rank in RunDir(path=out).ranks():
        about = read_json(rank.exception, {})
        if about.get("type"):
            yield f"{about['type']}: {str(about.get('message', '')).splitlines()[0] if about.get('message') else ''}"
