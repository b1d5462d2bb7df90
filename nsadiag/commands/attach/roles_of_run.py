"""Other roles of a job that `nsadiag run` has started: looked at when its ranks stand still, since these may wait for them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsadiag.agent.attaching.role_look import look
from nsadiag.agent.attaching.roles import Member, roles_in, several
from nsadiag.agent.processes import Process
from nsadiag.agent.stillness.judgement import Judgement
from nsadiag.evidence.layout import RunDir, make_private_dir

if TYPE_CHECKING:
    from collections.abc import Iterable


def look_at_roles(
    run: RunDir, family: Iterable[Process], ranks: Mapping[int, int]
) -> tuple[Judgement, str] | None:
    """The judgement on a job of which these processes are all, and these its living ranks, pids by number.

    None where it has one role, or its ranks wait for no other one: then what they do themselves decides.
    """
    from nsadiag.analysis.roles import FOLDER, told_of_roles
    from nsadiag.analysis.verdict import judge

    folder = RunDir(path=run.path / FOLDER)
    shutil.rmtree(folder.path, ignore_errors=True)
    members = _ranks_first(roles_in(family), ranks)
    if not members or not several(members):
        return None
    make_private_dir(folder.path)
    look(members, folder)
    verdict = told_of_roles(run.path, ranks, judge)
    if verdict is None:
        return None
    if verdict.outcome == "hung":
        return "still", verdict.summary
    # What nobody can tell is left to go on.
    return "busy" if verdict.outcome == "healthy" else "asleep", verdict.summary


def _ranks_first(members: list[Member], ranks: Mapping[int, int]) -> list[Member]:
    """In this order ranks have the numbers by which they are recorded; empty where one of them is missing."""
    recorded = {pid: number for number, pid in ranks.items()}
    own = sorted((m for m in members if m.process.pid in recorded), key=lambda m: recorded[m.process.pid])
    if [recorded[m.process.pid] for m in own] != list(range(len(ranks))):
        return []
    return [*own, *(m for m in members if m.process.pid not in recorded)]
