"""What a verdict says to do: for every recording the true one, and never a retry of what would fail again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.promises import promises
from support.recordings.golden import archive_of, recorded, unpack
from support.recordings.verdicts import Verdicts

from nsadiag.analysis.judgement.action import action_of
from nsadiag.analysis.load import load_cell
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.evidence.records import Evidence, Finding, Strength

TRUE = {promise.name: promise.action for promise in promises()}


def judged(name: str, folder: Path) -> RunDir:
    return unpack(archive_of(name), folder)


@pytest.mark.parametrize("name", recorded())
def test_the_action_is_the_one_that_the_script_promises(name: str, verdicts: Verdicts) -> None:
    action = verdicts.of(archive_of(name))["action"]
    assert (action["do"] if action else None) == TRUE[name], action


def finding(*actions: str) -> Finding:
    return Finding(
        mechanism="x", cls="network_stall", outcome="hung", strength=Strength.LIKELY, summary="", guilty_ranks=(1,),
        evidence=(Evidence(claim="rank 1 sends nothing", source="ends.json"),), actions=actions,  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_host_is_excluded_only_where_the_job_has_others(tmp_path: Path) -> None:
    run = judged("network_stall_lost_connection", tmp_path)
    alone = action_of(load_cell(run.path), finding("exclude host", "retry"))
    assert alone is not None and (alone.do, alone.host) == ("retry", None)
    for rank in run.ranks():
        write_json(rank.meta, {**read_json(rank.meta), "host": f"node{rank.rank}"})
    found = action_of(load_cell(run.path), finding("exclude host", "retry"))
    assert found is not None and (found.do, found.host) == ("exclude host", "node1")
    assert "rank 1 sends nothing" in found.because and found.source == "ends.json"


def test_what_failed_in_the_same_way_before_is_not_tried_again(tmp_path: Path) -> None:
    run = judged("rank_exception_bad_batch", tmp_path)
    (rank,) = [rank for rank in run.ranks() if rank.exception.exists()][:1]
    before = rank.path / "attempts" / "00"
    before.mkdir(parents=True)
    write_json(before / "exception.json", read_json(rank.exception))
    found = action_of(load_cell(run.path), finding("retry"))
    assert found is not None and found.do == "fix code"
    assert "attempt 0 had ended in the same way" in found.because
