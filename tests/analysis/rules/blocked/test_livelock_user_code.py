"""A loop that tries new values for ever: when time is up, what would end it, and has stayed the same, tells it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.findings import findings
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.rules.blocked.livelock_user_code import livelock_user_code
from nsadiag.evidence.documents.watch import RankMotion


def draws_at_timeout(folder: Path, **loop: Any) -> CellEvidence:
    """The job of the recording, with a loop in which something goes on."""
    cell = load_cell(unpack(archive_of("livelock_user_code_bisection"), folder).path)
    asks = {"changes": ("item",), "asks": ("picked",), "asks_in_vain_s": 90.0, **loop}

    def drawing(m: RankMotion) -> RankMotion:
        return replace(m, endless=False, loop=replace(m.loop, **asks) if m.loop else None)

    looks = tuple(
        replace(look, judgement="busy", motions=tuple(map(drawing, look.motions)))
        for look in cell.watch.looks
    )
    watch = replace(cell.watch, stopped="timeout", looks=looks, longest_quiet_s=1.0)
    return replace(cell, watch=watch)


def test_what_would_end_the_loop_has_stayed_for_long(tmp_path: Path) -> None:
    cell = draws_at_timeout(tmp_path)
    (found,) = findings(livelock_user_code, Case(cell))
    guilty = {m.rank for look in cell.watch.looks for m in look.motions if m.loop}
    assert (set(found.guilty_ranks), found.outcome, found.confidence) == (guilty, "hung", 0.6)
    assert (
        "new values (`item`), but `picked`, which would end it, has been the same for 90 s" in found.summary
    )


@pytest.mark.parametrize(
    "loop",
    [
        {"asks_in_vain_s": 50.0},
        {"asks_in_vain_s": 0.0},
        {"hidden": True},  # it changes objects, where nobody can look
    ],
)
def test_a_loop_that_may_get_somewhere_is_left_alone(tmp_path: Path, loop: dict[str, Any]) -> None:
    cell = draws_at_timeout(tmp_path, **loop)
    assert not findings(livelock_user_code, Case(cell))


def test_what_has_lasted_for_a_few_of_the_jobs_own_pauses_may_be_one_of_them(tmp_path: Path) -> None:
    cell = draws_at_timeout(tmp_path)
    cell = replace(cell, watch=replace(cell.watch, longest_quiet_s=12.0))
    assert not findings(livelock_user_code, Case(cell))
