"""The process that looks at one silence of an armed job: judges it, writes the bundle, tells whoever is to be told, and ends.

Started by the watcher (`commands.armed.watcher`), which holds none of what this imports.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.armed.watch import ArmedWatch
from nsadiag.agent.job.launch import ForeignJob
from nsadiag.agent.watching.state import Suspicion, WatchOptions
from nsadiag.agent.whereabouts import Whereabouts
from nsadiag.commands import output
from nsadiag.commands.armed import bundles
from nsadiag.commands.messages import notify
from nsadiag.commands.run import answer_first, judge_and_report
from nsadiag.errors import UsageError
from nsadiag.evidence.arming.home import Home
from nsadiag.evidence.arming.settings import Settings
from nsadiag.evidence.layout import RunDir, read_own_json, write_json
from nsadiag.evidence.records import Verdict
from nsadiag.printing import note

STALL = "stall.json"  # in a job's folder: the alert that stands
TALLY = "tally.json"  # in a job's folder: verdicts so far, by class, and how many were withdrawn


class Silent:
    """Notices for nobody: the first that anybody hears of a job is that it is stuck."""

    def looking(self, quiet_s: float) -> None: ...

    def stopping(self, says: str) -> None: ...

    def timed_out(self, timeout_s: float) -> None: ...

    def where(self, found: list[Whereabouts]) -> None: ...

    def quiet(self, quiet_s: float, seen: str) -> None: ...

    def suspected(self, suspicion: Suspicion, patience_s: float) -> None: ...

    def withdrawn(self, suspicion: Suspicion, pause_s: float) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Knowledge of the watcher on it."""

    run: RunDir  # the job's folder
    since: float  # monotonic seconds
    longest_s: float  # pause of the job before


def look(home: Home, silence: Silence, settings: Settings) -> RunDir | None:
    """Returns when it is over, or has been told: then the bundle."""
    run = silence.run
    about = _about(run, silence)
    output.write_run(run, **about)
    watch = ArmedWatch(
        ForeignJob(socket_dir=run.path / "s"),
        run,
        WatchOptions(on_hang="leave", expected_quiet_s=silence.longest_s),
        on_stuck=lambda: answer_first(run),
        notices=Silent(),
    )
    watch.begin(silence.since)
    with interrupts.held_off():
        watch.run()
    if watch.stopped != "hang":
        return None
    verdict = judge_and_report(run, about)
    if verdict.outcome == "healthy" or watch.has_moved:
        return None
    return _tell(home, run, settings, str(about["name"]), verdict)


def _tell(home: Home, run: RunDir, settings: Settings, name: str, verdict: Verdict) -> RunDir | None:
    """The alert: on disk, in the count, to whoever is to be told. A disk that takes nothing keeps nobody from hearing of it."""
    bundle, failure = run, ""
    try:
        folder = bundles.folder_of(settings.out, home)
        bundle = bundles.write(run, folder, name, settings.quota_mib)
    except OSError as error:
        failure = f"no bundle could be written: {error}"
        note(f"nsadiag: {failure}")
    stall = {
        "directory": str(bundle.path),
        "name": name,
        "class": verdict.cls,
        "summary": verdict.summary,
        "told_at": output.now(),
        "told_mono_s": time.monotonic(),
        "failure": failure,
    }
    for path, document in ((run.path / STALL, stall), (run.path / TALLY, _tally(run, verdict.cls))):
        try:
            write_json(path, document)
        except OSError as error:
            note(f"nsadiag: not written: {error}")
    notifier = notifier_of(settings, bundle, name)
    if notifier:
        notifier.verdict(verdict)
    return bundle


def _tally(run: RunDir, cls: str | None, withdrawn: int = 0) -> dict[str, Any]:
    found = read_own_json(run.path / TALLY)
    verdicts = dict(found.get("verdicts", {}))
    if cls is not None:
        verdicts[cls] = verdicts.get(cls, 0) + 1
    return {"verdicts": verdicts, "withdrawn": int(found.get("withdrawn", 0)) + withdrawn}


def withdraw(run: RunDir, settings: Settings) -> None:
    """The job has got on after all: said once, to whoever was told, and in the bundle."""
    stall = read_own_json(run.path / STALL)
    if not stall:
        return
    (run.path / STALL).unlink(missing_ok=True)
    write_json(run.path / TALLY, _tally(run, None, withdrawn=1))
    bundle = Path(str(stall["directory"]))
    bundles.mark(bundle, {"withdrawn_at": output.now()})
    notifier = notifier_of(settings, RunDir(path=bundle), str(stall.get("name", "")))
    if notifier:
        notifier.tell("withdrawn", f"withdrawn, the job goes on: {stall.get('summary', '')}")
        notifier.wait()


def notifier_of(settings: Settings, run: RunDir, name: str) -> notify.Notifier | None:
    """For the targets; one that cannot be notified costs a line, and not the others."""
    targets = []
    for target in settings.notify:
        try:
            notify.check((target,))
            targets.append(target)
        except UsageError as error:
            note(f"nsadiag: {error.message}")
    return notify.Notifier(targets=tuple(targets), run=run, name=name) if targets else None


def _about(run: RunDir, silence: Silence) -> dict[str, Any]:
    metas = [meta for rank in run.ranks() if (meta := read_own_json(rank.meta))]
    command = [str(word) for word in metas[0].get("argv", ())] if metas else []
    wall_s = time.time() - (time.monotonic() - silence.since)
    started_ns = min((int(meta["started_wall_ns"]) for meta in metas), default=0)
    return {
        "kind": "run",
        "armed": True,
        "name": name_of(command),
        "command": command,
        "started_at": _said(wall_s),
        "job_started_at": _said(started_ns / 1e9),
    }


def name_of(command: list[str]) -> str:
    """The job's, by the command of one of its ranks."""
    script = next((word for word in command if word.endswith(".py")), None)
    return Path(script).stem if script else (Path(command[0]).name if command else "job")


def _said(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, timezone.utc).isoformat(timespec="seconds")


def main(what: str, home: str, job: str, since: str, longest_s: str) -> None:
    """Entry point of the process that the watcher starts."""
    from nsadiag.commands.armed.watcher import settings_given

    interrupts.listen()
    run, settings = RunDir(path=Path(job)), settings_given()
    try:
        if what == "withdraw":
            withdraw(run, settings)
        else:
            silence = Silence(run=run, since=float(since), longest_s=float(longest_s))
            look(Home(Path(home)), silence, settings)
    except KeyboardInterrupt:
        os._exit(130)
