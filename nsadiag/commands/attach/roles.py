"""`nsadiag attach` of a job of several launchers: all of its roles, looked at together and judged as one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nsadiag.agent import processes
from nsadiag.agent.attaching.role_waits import role_waits
from nsadiag.agent.attaching.roles import Member, everyone, words_of
from nsadiag.agent.captures.capturing import QUICK, capture_rank
from nsadiag.agent.captures.target import Target
from nsadiag.commands import output
from nsadiag.commands.run import RunResult, exit_code, judge_and_report
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir, make_private_dir, this_node, write_json
from nsadiag.evidence.secrets.masking import mask_command
from nsadiag.evidence.user_code import count_as_well, roots_of
from nsadiag.printing import note
from nsadiag.source.archive import keep_sources

APART_S = 3.0
DOCUMENT = "roles.json"


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


def attach_roles(
    members: Sequence[Member], command: list[str], *, out: Path | None, force: bool
) -> RunResult:
    """Raises NsadiagError before anything was written."""
    name = "attach-" + "-".join(dict.fromkeys(member.role.replace(" ", "") for member in members))[:60]
    run = output.prepare(out, name, force=force)
    about: dict[str, Any] = {"kind": "attach", "name": name, "command": command, "started_at": output.now()}
    output.write_run(run, **about)
    document = look(members, run)
    about["gaps"] = document["gaps"]
    output.write_run(run, **about, world_size=len(members))
    verdict = judge_and_report(run, about)
    note(f"nsadiag: {verdict.certainty or verdict.outcome}: {verdict.summary}")
    return RunResult(
        directory=run.path, verdict=verdict, exit_code=exit_code(verdict, None, passthrough=False)
    )


def look(members: Sequence[Member], run: RunDir) -> dict[str, Any]:
    """Two captures of all processes: roles.json."""
    roots: set[str] = set()
    for number in range(len(members)):
        roots |= set(_meta(run, number, members)["user_code"])
    count_as_well(roots)
    began = time.monotonic()
    for capture in (1, 2):
        if capture > 1:
            time.sleep(APART_S)
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(functools.partial(_capture, run, capture), range(len(members)), members))
    document = {
        "id": "roles",
        "processes": [
            {
                "number": number, "pid": member.process.pid, "node": this_node(), "driver": True,
                "role": member.role, "rank": member.rank,
                "parent": processes.parent(member.process.pid),
            }
            for number, member in enumerate(members)
        ],
        "gaps": [
            f"process {m.process.pid} of {m.role} has ended meanwhile"
            for m in members if not processes.is_alive(m.process)
        ],
        "user_code": sorted(roots),
        "watched_s": time.monotonic() - began,
        "taken_ms": time.time() * 1000,
    }  # fmt: skip
    # Files that roles wait for are told apart by names in the source.
    keep_sources(run)
    write_json(run.path / DOCUMENT, document)
    return document


def _meta(run: RunDir, number: int, members: Sequence[Member]) -> dict[str, Any]:
    pid = members[number].process.pid
    words, cwd = words_of(pid), ""
    with contextlib.suppress(OSError):
        cwd = str(Path(f"/proc/{pid}/cwd").readlink())
    folder = make_private_dir(run.rank(number).path)
    document = {
        "rank": number, "world_size": len(members), "pid": pid, "host": this_node(), "argv": mask_command(words), "cwd": cwd,
        "user_code": roots_of(words, processes.parent(pid)),
    }  # fmt: skip
    write_json(folder / "meta.json", document)
    return document


def _capture(run: RunDir, capture: int, number: int, member: Member) -> None:
    directory = run.rank(number).capture(capture)
    capture_rank(Target(pid=member.process.pid, directory=directory, socket=None), QUICK)
    write_json(directory.path / "waits.json", dataclasses.asdict(role_waits(member.process.pid)))
