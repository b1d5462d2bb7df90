"""The watcher of a node: one process that follows every armed job of a user, and ends none.

It glances at a counter of each rank once a second. Whatever needs more than that, looks, verdicts, messages, is done by a
process of its own (`commands.armed.stalls`), so that this one stays small and what goes wrong there ends there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nsadiag.agent.armed.followed import Followed
from nsadiag.agent.processes import DeathWatch
from nsadiag.evidence.arming.home import Home
from nsadiag.evidence.arming.settings import SETTINGS, Settings, settings_of, with_variables
from nsadiag.evidence.layout import read_own_json, write_json
from nsadiag.version import __version__

EVERY_S = 1.0
STOPPED_S = 5.0  # that a wait of EVERY_S took: we were stopped, or the machine slept
IDLE_S = 30.0  # without a job, after which the watcher ends
SURE_S = 20.0  # of a job's motion, after which an alert is withdrawn: what is being ended moves once more
AGAIN = 1.5  # times as long as a silence was when it was looked at in vain, until it is again
AT_ONCE = 2  # silences that are looked at side by side
METRICS_S = 15.0
MOST_LOG = 1 << 20
STARTER = "import os, sys; sys.path.insert(0, sys.argv.pop(1)); from nsadiag.commands.armed.{} import main; main(*sys.argv[1:])"


@dataclass(kw_only=True)
class Job:
    """A job, and what is being done about it."""

    followed: Followed
    looking: subprocess.Popen[bytes] | None = None
    not_before_s: float = 0.0  # of the present silence
    moving_since: float | None = None  # with an alert that stands
    moved: float = 0.0

    @property
    def stall(self) -> Path:
        return self.followed.run.path / "stall.json"


class Watcher:
    """Follows what lies in a home. `settings` are those of the rank, or the person, that started it."""

    def __init__(self, home: Home, settings: Settings, *, stays: bool = False) -> None:
        self._home, self._settings, self._stays = home, settings, stays
        self._jobs: dict[str, Job] = {}
        self._deaths = DeathWatch()
        self._idle_since = self._before = time.monotonic()
        self._metrics_at = 0.0
        self._measuring: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Until there is nothing to watch any more."""
        while not self._is_done():
            for process, end in self._deaths.wait(EVERY_S):
                for job in self._jobs.values():
                    job.followed.ended(process, end)
            # A disk that is full or gone, a folder that somebody took away: there is another second.
            with contextlib.suppress(OSError, ValueError):
                self.round(time.monotonic())

    def round(self, now: float) -> None:
        """One glance at everything."""
        stood = now - self._before > STOPPED_S
        self._before = now
        self._discover()
        for name, job in list(self._jobs.items()):
            for process in job.followed.glance(now):
                self._deaths.add(process)
            if stood:
                job.followed.moves(now)
            self._attend(job, now)
            if job.followed.is_over(now) and job.looking is None:
                self._remove(name)
        self._measure(now)
        if self._jobs:
            self._idle_since = now

    def _discover(self) -> None:
        for name in self._home.job_names():
            if name not in self._jobs:
                self._jobs[name] = Job(followed=Followed(run=self._home.job(name)))

    def _attend(self, job: Job, now: float) -> None:
        followed, looking = job.followed, job.looking
        if looking is not None:
            if looking.poll() is None:
                return
            job.looking = None
            job.not_before_s = AGAIN * (now - followed.moved)
        if followed.moved > job.moved:
            job.moved, job.not_before_s = followed.moved, 0.0
        if job.stall.exists():
            self._withdraw_if_it_moves(job, now)
        elif followed.is_due(now) and now - followed.moved > job.not_before_s and self._busy() < AT_ONCE:
            job.looking = self._start("look", job)

    def _withdraw_if_it_moves(self, job: Job, now: float) -> None:
        told_at = float(read_own_json(job.stall).get("told_mono_s", 0.0))
        living = any(rank.end is None for rank in job.followed.ranks.values())
        if job.followed.moved <= told_at or not living:
            job.moving_since = None
        elif job.moving_since is None:
            job.moving_since = now
        elif now - job.moving_since > SURE_S and now - job.followed.moved < SURE_S / 2:
            job.moving_since = None
            job.looking = self._start("withdraw", job)

    def _busy(self) -> int:
        return sum(job.looking is not None for job in self._jobs.values())

    def _start(self, what: str, job: Job) -> subprocess.Popen[bytes] | None:
        followed = job.followed
        words = (what, self._home.path, followed.run.path, followed.moved, followed.longest_s)
        return self._started("stalls", *map(str, words))

    def _started(self, module: str, *words: str) -> subprocess.Popen[bytes] | None:
        """A process of ours; None where there can be none, as after nsadiag was removed."""
        package = str(Path(__file__).resolve().parents[3])
        environment = {**os.environ, SETTINGS: self._settings.to_json()}
        try:
            return subprocess.Popen(
                [sys.executable, "-E", "-c", STARTER.format(module), package, *words],
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except OSError:
            return None

    def _remove(self, name: str) -> None:
        """A job that is over; unless one of its ranks is just being started anew."""
        with self._home.clearing() as nobody_enters:
            path = self._home.job(name).path
            if not nobody_enters or not self._jobs[name].followed.is_over(time.monotonic()):
                return
            gone = path.with_name(f".{name}")
            with contextlib.suppress(OSError):
                path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
            del self._jobs[name]

    def _measure(self, now: float) -> None:
        if not self._settings.metrics or now < self._metrics_at:
            return
        if self._measuring is not None and self._measuring.poll() is None:
            return
        self._metrics_at = now + METRICS_S
        self._measuring = self._started("measures", str(self._home.path), self._settings.metrics)

    def _is_done(self) -> bool:
        """Whether nothing has been there to watch for a while; the home goes with it, unless it holds bundles."""
        if not self._home.path.exists():
            return True
        if self._stays or self._jobs or time.monotonic() - self._idle_since < IDLE_S:
            return False
        with self._home.clearing() as nobody_enters:
            if not nobody_enters or self._home.job_names():
                return False
            if not (self._home.path / "artifacts").is_dir():
                self._home.remove()
            return True


def settings_given() -> Settings:
    """The settings by the environment."""
    try:
        settings = settings_of(json.loads(os.environ.get(SETTINGS, "")))
    except ValueError:
        package = str(Path(__file__).resolve().parents[3])
        settings = Settings(version=__version__, python=sys.executable, package=package)
    return with_variables(settings)


def watch(
    home: Home, settings: Settings, *, stays: bool, log: bool, say: Callable[[str], None] = lambda text: None
) -> bool:
    """Watches as the only one of this home; False, at once, where another does."""
    handle = home.take_watch()
    if handle is None:
        return False
    try:
        if log:
            _log_to(home.log)
        write_json(home.state, {"pid": os.getpid(), "version": settings.version})
        say(f"nsadiag: watching armed jobs in {home.path}")
        Watcher(home, settings, stays=stays).run()
    finally:
        os.close(handle)
    return True


def _log_to(path: Path) -> None:
    """Sends output of this process and of those that it starts there; of a log that grew large, nothing is kept."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        if path.exists() and path.stat().st_size > MOST_LOG:
            path.unlink()
        handle = os.open(path, flags, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)


def main(home: str) -> None:
    """Entry point of the process that a rank starts (`worker.armed.rank`)."""
    with contextlib.suppress(KeyboardInterrupt, OSError):
        watch(Home(Path(home)), settings_given(), stays=False, log=True)
