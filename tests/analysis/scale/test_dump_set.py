"""Several culprits in one job, by dumps of 16 ranks alone, devices that are stuck or hosts that never came; and in a job that was watched."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest
from incident_dumps import RANKS, Incident, dump_of, groups_of, write_incident
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.verdict import judge_directory
from nsadiag.analysis.verdict import judge_evidence as judge_external

CULPRITS = [(12, 14), (9, 14), (10, 15), (6,), (0, 5, 11)]
CLASSES = {"gpu": "gpu_kernel_hang", "host": "missing_rank"}


@pytest.mark.parametrize("culprits", CULPRITS, ids=str)
@pytest.mark.parametrize("fault", CLASSES)
def test_all_culprits_are_named_and_a_stuck_device_is_told_from_a_stuck_host(
    tmp_path: Path, fault: str, culprits: tuple[int, ...]
) -> None:
    write_incident(tmp_path, Incident(fault=fault, culprits=culprits))
    verdict = judge_external(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("hung", CLASSES[fault], culprits)
    assert all(str(rank) in verdict.summary for rank in culprits), verdict.summary
    assert all((tmp_path / item.source.partition("#")[0]).exists() for item in verdict.evidence)


@pytest.mark.parametrize("fault", CLASSES)
def test_the_order_of_the_culprits_and_of_the_groups_does_not_matter(tmp_path: Path, fault: str) -> None:
    for number, layers in enumerate((3, 40, 200)):
        write_incident(tmp_path / str(number), Incident(fault=fault, culprits=(14, 9), layers=layers))
        assert judge_external(tmp_path / str(number)).guilty_ranks == (9, 14)


def test_one_dump_less_costs_no_other_culprit(tmp_path: Path) -> None:
    write_incident(tmp_path, Incident(fault="gpu", culprits=(9, 14)))
    (tmp_path / "_dump_13").unlink()
    verdict = judge_external(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("gpu_kernel_hang", (9, 14))
    assert any("13" in gap for gap in verdict.gaps)


def test_the_dumps_have_the_shape_of_a_frameworks() -> None:
    incident = Incident(fault="gpu", culprits=(12, 14))
    assert all(len(groups_of(rank)) == 13 for rank in range(RANKS))
    dump = dump_of(incident, 12)
    assert len(dump["pg_config"]) == 13 and all(e["state"] == "scheduled" for e in dump["entries"])
    behind, ahead = (dump_of(incident, rank)["pg_status"] for rank in (12, 13))
    assert behind["5"]["last_completed_collective"] < ahead["5"]["last_completed_collective"]
    host = dump_of(dataclasses.replace(incident, fault="host"), 12)
    assert host["entries"] == [] and host["pg_status"]["5"] == {
        **host["pg_status"]["5"],
        "last_completed_collective": host["pg_status"]["5"]["last_enqueued_collective"],
    }


def test_frames_that_are_none_cost_no_verdict(tmp_path: Path) -> None:
    for rank in range(RANKS):
        document = dump_of(Incident(fault="host", culprits=(6,)), rank)
        for entry in document["entries"]:
            entry["frames"] = ["train.py", {"filename": "train.py", "line": "many", "name": "main"}]
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(document, protocol=2))
    assert judge_external(tmp_path).guilty_ranks == (6,)


def test_two_ranks_that_are_stuck_for_reasons_of_their_own_are_both_named(tmp_path: Path) -> None:
    run = unpack(archive_of("external_wait_beside_own_lock"), tmp_path)
    verdict = judge_directory(run.path)
    assert (verdict.guilty_ranks, verdict.blocked_ranks) == ((1, 2), (0,))
    assert "in next_shard for an answer from" in verdict.summary
    assert "rank 1 is blocked on a lock or another thread" in verdict.summary
    assert {item.source.split("/")[1] for item in verdict.evidence if item.source.startswith("ranks/")} >= {
        "00001", "00002",
    }  # fmt: skip
    assert "local_lock_deadlock" not in {row.cls for row in verdict.rejected}
    assert verdict.action is not None and verdict.action.do == "fix code"
