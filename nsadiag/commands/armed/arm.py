"""`nsadiag arm`, `nsadiag disarm` and `nsadiag arm --status`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nsadiag.agent import processes
from nsadiag.agent.armed.followed import Followed
from nsadiag.agent.processes import Process
from nsadiag.commands.armed import bundles, environments, stalls, watcher
from nsadiag.commands.armed.environments import Environment
from nsadiag.commands.messages import metrics, notify
from nsadiag.commands.runs import armed_folder
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.arming import home as homes
from nsadiag.evidence.arming.home import Home
from nsadiag.evidence.arming.settings import QUOTA_MIB, Settings, with_variables
from nsadiag.evidence.layout import read_own_json
from nsadiag.printing import note
from nsadiag.reports.history import runs
from nsadiag.version import __version__

ENDS_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ArmRequest:
    """A parsed `nsadiag arm` line."""

    python: str = ""
    out: Path | None = None
    notify: tuple[str, ...] = ()
    metrics: Path | None = None
    quota_mib: int = QUOTA_MIB

    def settings(self) -> Settings:
        """Raises UsageError for whom or what nothing can be told."""
        notify.check(self.notify)
        if self.metrics:
            metrics.check(self.metrics)
        if self.quota_mib * bundles.MIB < bundles.MOST_BYTES:
            raise UsageError(
                f"--quota {self.quota_mib}: a bundle takes up to {bundles.MOST_BYTES // bundles.MIB} MiB"
            )
        return Settings(
            version=__version__,
            python=sys.executable,
            package=str(environments.PACKAGE),
            out=str(self.out.resolve()) if self.out else "",
            quota_mib=self.quota_mib,
            notify=self.notify,
            metrics=str(self.metrics.resolve()) if self.metrics else "",
        )


def arm(request: ArmRequest) -> Environment:
    """Arms the environment, or changes the settings by which it is armed. Raises NsadiagError."""
    settings = request.settings()
    environment = environments.environment_of(request.python or sys.executable)
    before = environment.settings()
    if before is not None and (before.version, before.package) != (settings.version, settings.package):
        raise UsageError(
            f"{environment.prefix} is already armed, by nsadiag {before.version} in {before.package}",
            f"nsadiag disarm --python {environment.python}, then arm it again",
        )
    environments.write(environment, settings)
    return environment


def disarm(python: str) -> tuple[Environment, bool, int]:
    """Takes the file away, and what is idle of ours on this node; whether it was armed, and how many jobs still record."""
    environment = environments.environment_of(python or sys.executable)
    was = environment.settings() is not None
    environments.remove(environment)
    home = homes.found()
    return environment, was, _clear(home) if home else 0


def _clear(home: Home) -> int:
    """Ends the watcher and removes the home where no job is in it; returns how many are."""
    living = [name for name in home.job_names() if _living(_followed(home, name))]
    if living:
        return len(living)
    running = _watcher(home)
    if running is not None:
        processes.end([running], ENDS_S)
    with home.clearing() as nobody_enters:
        if nobody_enters and not (home.path / "artifacts").is_dir():
            home.remove()
    return 0


def _watcher(home: Home) -> Process | None:
    """The process that holds the watch."""
    if not home.is_watched():
        return None
    return processes.identify(int(read_own_json(home.state).get("pid", 0)))


def watch(request: ArmRequest) -> None:
    """Watches this user's armed jobs on this node until it is ended. Raises NsadiagError where somebody does already."""
    home = homes.found(create=True)
    if home is None:
        raise MachineError(
            "there is no folder for armed jobs on this node", f"name one of yours in {homes.RUNTIME_DIR}"
        )
    settings = with_variables(request.settings())
    # A service is ended by SIGTERM as a matter of course.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if not watcher.watch(home, settings, stays=True, log=False, say=note):
        raise UsageError(
            f"the armed jobs in {home.path} are watched already",
            "one watcher a user and node is enough: nsadiag arm --status",
        )


def status(python: str) -> dict[str, Any]:
    """Everything that `nsadiag arm --status` shows."""
    environment = environments.environment_of(python or sys.executable)
    settings = environment.settings()
    home = homes.found()
    running = _watcher(home) if home else None
    # As a rank that starts here would have it.
    own = with_variables(settings or Settings(version="", python="", package=""))
    place = Path(own.out) if own.out else armed_folder()
    found = [run for run in runs(place) if bundles.is_bundle(run.directory)] if place.is_dir() else []
    about = asdict(settings) if settings else None
    if about:
        # An address is a secret; how many there are is none.
        about["notify"] = len(about["notify"])
    return {
        "environment": environment.prefix,
        "file": str(environment.file),
        "armed": settings is not None,
        "settings": about,
        "home": str(home.path) if home else None,
        "watcher": running.pid if running else None,
        "jobs": [_job(home, name) for name in home.job_names()] if home else [],
        "bundles": {"directory": str(place), "count": len(found)},
    }


def _followed(home: Home, name: str) -> Followed:
    followed = Followed(run=home.job(name))
    followed.glance(time.monotonic())
    return followed


def _living(followed: Followed) -> bool:
    return any(rank.end is None for rank in followed.ranks.values())


def _job(home: Home, name: str) -> dict[str, Any]:
    followed = _followed(home, name)
    pulses = [rank.progress.pulse for rank in followed.ranks.values() if rank.progress]
    newest = [int(last["t_ns"][0]) for pulse in pulses if (last := pulse.last()) is not None]
    stall = read_own_json(followed.run.path / stalls.STALL)
    return {
        "directory": str(followed.run.path),
        "ranks": sorted(followed.ranks),
        "pids": [followed.ranks[number].pid for number in sorted(followed.ranks)],
        "step": max((pulse.steps() for pulse in pulses), default=0),
        "quiet_s": round((time.monotonic_ns() - max(newest)) / 1e9, 1) if newest else None,
        "stall": {key: stall.get(key) for key in ("class", "summary", "directory", "told_at")}
        if stall
        else None,
    }


def lines_of(found: dict[str, Any]) -> list[str]:
    """To read."""
    settings = found["settings"]
    said = f"armed by nsadiag {settings['version']}" if settings else "not armed"
    lines = [f"{found['environment']}: {said}"]
    pid = found["watcher"]
    lines.append(f"watcher: process {pid}" if pid else "watcher: none runs; the next rank starts one")
    for job in found["jobs"]:
        ranks = f"{len(job['ranks'])} rank{'s' * (len(job['ranks']) != 1)}"
        quiet = "" if job["quiet_s"] is None else f", last event {job['quiet_s']:.0f} s ago"
        lines.append(f"{ranks}, step {job['step']}{quiet}: {job['directory']}")
        if job["stall"]:
            lines.append(f"  stalled: {job['stall']['summary']} ({job['stall']['directory']})")
    count = found["bundles"]["count"]
    lines.append(f"{count} bundle{'s' * (count != 1)} in {found['bundles']['directory']}")
    return lines


def as_json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1)


def variable_lines(request: ArmRequest) -> list[str]:
    """Lines for the environment of an image or a job, as a shell takes them; what is on PYTHONPATH there stays."""
    more = {"PYTHONPATH": "${PYTHONPATH:+:$PYTHONPATH}"}
    return [
        f"export {name}={shlex.quote(value)}{more.get(name, '')}"
        for name, value in environments.variables(request.settings()).items()
    ]
