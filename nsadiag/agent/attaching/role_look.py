"""A look at all processes of a job of several launchers: two captures of each, and roles.json."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nsadiag.agent import processes
from nsadiag.agent.attaching.role_waits import role_waits
from nsadiag.agent.attaching.roles import Member, words_of
from nsadiag.agent.captures.capturing import QUICK, capture_rank
from nsadiag.agent.captures.target import Target
from nsadiag.evidence.layout import RunDir, make_private_dir, this_node, write_json
from nsadiag.evidence.secrets.masking import mask_command
from nsadiag.evidence.user_code import count_as_well, roots_of
from nsadiag.source.archive import keep_sources

APART_S = 3.0
DOCUMENT = "roles.json"


def look(members: Sequence[Member], run: RunDir) -> list[str]:
    """Two captures of all processes, and roles.json; returns its gaps."""
    roots = {root for number in range(len(members)) for root in _meta(run, number, members)}
    count_as_well(roots)
    began = time.monotonic()
    for capture in (1, 2):
        if capture > 1:
            time.sleep(APART_S)
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(functools.partial(_capture, run, capture), range(len(members)), members))
    gaps = [
        f"process {m.process.pid} of {m.role} has ended meanwhile"
        for m in members if not processes.is_alive(m.process)
    ]  # fmt: skip
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
        "gaps": gaps,
        "user_code": sorted(roots),
        "watched_s": time.monotonic() - began,
        "taken_ms": time.time() * 1000,
    }  # fmt: skip
    # Files that roles wait for are told apart by names in the source.
    keep_sources(run)
    write_json(run.path / DOCUMENT, document)
    return gaps


def _meta(run: RunDir, number: int, members: Sequence[Member]) -> list[str]:
    """The settings of one process; returns the roots of its user's code."""
    pid = members[number].process.pid
    words, cwd = words_of(pid), ""
    with contextlib.suppress(OSError):
        cwd = str(Path(f"/proc/{pid}/cwd").readlink())
    folder = make_private_dir(run.rank(number).path)
    user_code = roots_of(words, processes.parent(pid))
    document = {
        "rank": number, "world_size": len(members), "pid": pid, "host": this_node(), "argv": mask_command(words), "cwd": cwd,
        "user_code": user_code,
    }  # fmt: skip
    write_json(folder / "meta.json", document)
    return user_code


def _capture(run: RunDir, capture: int, number: int, member: Member) -> None:
    directory = run.rank(number).capture(capture)
    capture_rank(Target(pid=member.process.pid, directory=directory, socket=None), QUICK)
    write_json(directory.path / "waits.json", dataclasses.asdict(role_waits(member.process.pid)))
