"""`nsadiag attach` of a job of several launchers: all of its roles, looked at together and judged as one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsadiag.agent.attaching.role_look import look
from nsadiag.agent.attaching.roles import Member, everyone, jobs_among
from nsadiag.commands import output
from nsadiag.commands.run import RunResult, exit_code, judge_and_report
from nsadiag.errors import UsageError
from nsadiag.printing import note


def pids_of_all(*, if_none: bool = False) -> list[int]:
    """Raises UsageError where no distributed job of this user runs here, unless `if_none`: then there are none."""
    found = everyone()
    if not found and not if_none:
        raise UsageError(
            "no distributed job of yours runs here", "nsadiag attach PID..., as pgrep -af torchrun shows it"
        )
    return found


def named(words: Sequence[str]) -> dict[int, str]:
    """Names by pid, of words like `engine=4711`. Raises UsageError."""
    found: dict[int, str] = {}
    for word in words:
        name, equals, pid = word.rpartition("=")
        if not (name and equals and pid.isdigit()):
            raise UsageError(f"{word!r} names no role", "--role NAME=PID, as in --role engine=4711")
        found[int(pid)] = name
    return found


def attach_all(members: Sequence[Member], command: list[str], *, out: Path | None, force: bool) -> RunResult:
    """Each of the jobs that these are by itself, the second and further ones in folders of their own; returns the worst.

    Raises NsadiagError before anything was written.
    """
    jobs = jobs_among(members)
    places = [out, *(out and out.with_name(f"{out.name}-{number}") for number in range(2, len(jobs) + 1))]
    found = [
        attach_roles(job, command, out=place, force=force) for job, place in zip(jobs, places, strict=True)
    ]
    if len(found) > 1:
        note(f"nsadiag: {len(found)} jobs, in {', '.join(str(each.directory) for each in found)}")
    return max(found, key=lambda each: each.exit_code)


def attach_roles(
    members: Sequence[Member], command: list[str], *, out: Path | None, force: bool
) -> RunResult:
    """Raises NsadiagError before anything was written."""
    name = "attach-" + "-".join(dict.fromkeys(member.role.replace(" ", "") for member in members))[:60]
    run = output.prepare(out, name, force=force)
    about: dict[str, Any] = {"kind": "attach", "name": name, "command": command, "started_at": output.now()}
    output.write_run(run, **about)
    about["gaps"] = look(members, run)
    output.write_run(run, **about, world_size=len(members))
    verdict = judge_and_report(run, about)
    note(f"nsadiag: {verdict.certainty or verdict.outcome}: {verdict.summary}")
    return RunResult(
        directory=run.path, verdict=verdict, exit_code=exit_code(verdict, None, passthrough=False)
    )
