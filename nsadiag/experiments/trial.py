"""One candidate run as a real job under the watch, and judged; several at once, each in a slot of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nsadiag.agent import interrupts
from nsadiag.agent.job import scratch
from nsadiag.agent.rehearsal.coordinator import coordinating
from nsadiag.agent.rehearsal.ranks import started_directly
from nsadiag.agent.rehearsal.watch import RehearsalWatch
from nsadiag.agent.watching.state import WatchOptions
from nsadiag.agent.watching.watch import Watch
from nsadiag.engines.local import MakeWatch, WarmLauncher, run_command, run_warm
from nsadiag.evidence.layout import RunDir, make_private_dir
from nsadiag.evidence.records import Verdict, Where
from nsadiag.evidence.rehearsal import SOCKET

POLL_S = 0.1
T = TypeVar("T")


def torchrun(world_size: int) -> tuple[str, ...]:
    """This Python's own, whatever is found under that name."""
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world_size),
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """The command of a trial: arguments for torchrun, on ranks forked from a warm launcher, or its own launcher line."""

    argv: tuple[str, ...]
    world_size: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()  # empty: warm
    cwd: Path | None = None

    def words(self) -> list[str]:
        """The same as a command to type."""
        launcher = self.launcher or ("torchrun", "--standalone", "--nproc-per-node", str(self.world_size))
        return [*launcher, *self.argv]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The time limits of a trial, and the amount of evidence captured from a job that hangs."""

    stall_after_s: float | None = None  # None: learnt from the job's own rhythm
    looks_apart_s: float = 2.0
    thorough: bool = True
    believes_world: bool = True
    timeout_s: float = 0.0
    most_steps: int | None = None
    probes: str = "light"
    rehearsed: bool = (
        False  # calls are compared before they are made, and what cannot be matched ends the trial
    )

    def options(self) -> WatchOptions:
        return WatchOptions(
            stall_after_s=self.stall_after_s,
            timeout_s=self.timeout_s,
            looks_apart_s=self.looks_apart_s,
            thorough=self.thorough,
            believes_world=self.believes_world,
            most_steps=self.most_steps,
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of one candidate."""

    directory: Path
    verdict: Verdict
    wall_s: float
    steps: int
    longest_quiet_s: float
    ended_by_us: bool  # by its time limit, or because it got further than the failure


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The parts of a verdict that have to stay for the failure to be the same.

    Outcome, class, guilty ranks, and the place by its text: function, line of code, operation, parameter. The file's
    name may be another where modules were put into one, and lines move.
    """

    outcome: str
    cls: str
    guilty_ranks: tuple[int, ...]
    function: str | None
    code: str | None
    op: str | None
    parameter: str | None
    any_parameter: bool = False  # where the program itself draws by lot which one it is

    @classmethod
    def of(cls, verdict: Verdict) -> Wanted:
        where = verdict.where or Where()
        return cls(
            outcome=verdict.outcome,
            cls=verdict.cls,
            guilty_ranks=verdict.guilty_ranks,
            function=where.function,
            code=where.code,
            op=where.collective.op if where.collective else None,
            parameter=where.parameter,
        )

    def seen_in(self, verdict: Verdict) -> bool:
        other = dataclasses.replace(Wanted.of(verdict), any_parameter=self.any_parameter)
        if self.any_parameter and other.parameter is not None:
            other = dataclasses.replace(other, parameter=self.parameter)
        return self == other

    def as_in(self, verdict: Verdict) -> Wanted:
        """With the outcome of that verdict, if it is the same failure: what hangs one time may crash another."""
        same = dataclasses.replace(self, outcome=verdict.outcome)
        return (
            same if same.seen_in(verdict) and {self.outcome, verdict.outcome} <= {"hung", "crashed"} else self
        )

    def instead(self, verdict: Verdict) -> str:
        """In words, what it is instead: the outcome and class, or what else differs of the same class."""
        other = Wanted.of(verdict)
        said = f"{verdict.outcome} ({verdict.cls})"
        if other.cls != self.cls:
            return said
        free = {"any_parameter", *(["parameter"] if self.any_parameter else [])}
        names = [f.name for f in dataclasses.fields(self) if f.name not in free]
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        return f"{said}, but {', '.join(f'{n} {getattr(other, n)}' for n in differing)}"


def run_trial(job: Job, directory: Path, pace: Pace, launcher: WarmLauncher | None) -> Trial:
    """Runs the job to its end, or until nothing more is to be learnt; nothing of it is left."""
    from nsadiag.analysis.verdict import judge_directory

    run, started = RunDir(path=make_private_dir(directory)), time.monotonic()
    watch = _watched(job, run, pace, launcher)
    verdict = judge_directory(run.path, live=True)
    return Trial(
        directory=run.path,
        verdict=verdict,
        wall_s=time.monotonic() - started,
        steps=max((rank.steps for rank in watch.ranks.values()), default=0),
        longest_quiet_s=watch.patience.longest_s,
        ended_by_us=watch.stopped == "timeout",
    )


def _watched(job: Job, run: RunDir, pace: Pace, launcher: WarmLauncher | None) -> Watch:
    if not pace.rehearsed:
        return _run(job, run, pace, launcher)
    with scratch.made() as directory, coordinating(directory) as coordinator:
        make_watch = functools.partial(RehearsalWatch, coordinator=coordinator)
        return _run(job, run, pace, launcher, {SOCKET: str(coordinator.path)}, make_watch)


def _run(
    job: Job,
    run: RunDir,
    pace: Pace,
    launcher: WarmLauncher | None,
    env: Mapping[str, str] | None = None,
    make_watch: MakeWatch = Watch,
) -> Watch:
    if launcher is None:
        return run_command(
            started_directly(job.words()) if pace.rehearsed else job.words(),
            run,
            pace.options(),
            probes=pace.probes,
            env={**job.env, **(env or {})},
            cwd=job.cwd,
            make_watch=make_watch,
        )
    return run_warm(
        launcher,
        list(job.argv),
        run,
        pace.options(),
        world_size=job.world_size,
        probes=pace.probes,
        env=env,
        cwd=job.cwd,
        make_watch=make_watch,
    )


class Slots:
    """Threads that each run one trial at a time; a slot keeps its launcher warm between trials."""

    def __init__(self, count: int, logs: Path, *, preload: Sequence[str] = ()) -> None:
        self.count = count
        self._logs, self._preload = make_private_dir(logs), tuple(preload)
        self._own = threading.local()
        self._launchers: list[WarmLauncher] = []
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="nsadiag-slot")

    def warm_up(self, env: Mapping[str, str]) -> None:
        """Starts the launchers, which need some seconds, before they are wanted."""
        gate = threading.Barrier(self.count)

        def start() -> None:
            gate.wait()
            self._launcher(env)

        for ready in [self._pool.submit(start) for _ in range(self.count)]:
            waited_for(ready)

    def submit(self, job: Job, directory: Path, pace: Pace) -> Future[Trial]:
        """Begins a trial as soon as a slot is free."""

        def trial() -> Trial:
            return run_trial(job, directory, pace, None if job.launcher else self._launcher(job.env))

        return self._pool.submit(trial)

    def run(self, job: Job, directory: Path, pace: Pace) -> Trial:
        """One trial, waited for."""
        return waited_for(self.submit(job, directory, pace))

    def _launcher(self, env: Mapping[str, str]) -> WarmLauncher:
        mine: WarmLauncher | None = getattr(self._own, "launcher", None)
        if mine is None or mine.env != dict(env):
            if mine is not None:
                mine.close()
                self._launchers.remove(mine)
            log = self._logs / f"{threading.current_thread().name}.log"
            mine = self._own.launcher = WarmLauncher(log, preload=self._preload, env=env)
            self._launchers.append(mine)
        return mine

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        # Trials hear of an interrupt by themselves, and end their jobs first.
        with interrupts.held_off():
            self._pool.shutdown(wait=True)
            for launcher in self._launchers:
                launcher.close()


@contextlib.contextmanager
def slots(count: int, logs: Path, *, preload: Sequence[str] = ()) -> Iterator[Slots]:
    """Slots that leave no process behind, whatever happens in the block."""
    opened = Slots(count, logs, preload=preload)
    try:
        yield opened
    finally:
        opened.close()


def waited_for(future: Future[T]) -> T:
    """The result; an interrupt is heard meanwhile."""
    while True:
        interrupts.check()
        try:
            return future.result(timeout=POLL_S)
        except NotYet:
            if future.done():  # a TimeoutError of the trial's own
                raise


def quicker(pace: Pace, trial: Trial) -> Pace:
    """The pace of later trials, from one that failed as wanted: its time and its steps, with a margin."""
    return dataclasses.replace(
        pace,
        timeout_s=min(10.0 + 3.0 * trial.wall_s, pace.timeout_s or 180.0),
        most_steps=trial.steps + max(3, trial.steps // 2) if trial.verdict.outcome != "wrong" else None,
    )
