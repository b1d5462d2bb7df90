"""What NCCL's watchdog says in a log of the calls of each rank and group."""

from pathlib import Path

import pytest
from support.recordings.collected import watchdog_lines

from nsadiag.analysis.external import watchdog
from nsadiag.analysis.ingest import logs
from nsadiag.analysis.ingest.messages.watchdog import TimedOut
from nsadiag.analysis.judgement.conclude import RELIABILITY
from nsadiag.analysis.verdict import judge_evidence
from nsadiag.evidence.records import Strength


def timed_out(text: str) -> tuple[TimedOut, ...]:
    return logs.read_log(logs.numbered(text)).timed_out


def test_members_of_a_mesh_group_follow_from_two_that_report() -> None:
    told = "".join(watchdog_lines(rank, group="3 PG GUID 9(mesh_dp)", number=rank // 4) for rank in (2, 14))
    assert watchdog.members_of(timed_out(told)) == [2, 6, 10, 14]


def test_members_that_follow_no_rule_are_those_that_report() -> None:
    told = "".join(
        watchdog_lines(rank, group="3 PG GUID 9(mesh_dp)", number=n) for n, rank in enumerate((0, 1, 5))
    )
    assert watchdog.members_of(timed_out(told)) == [0, 1, 5]


def test_one_rank_with_two_numbers_in_its_group_tells_nothing_of_others() -> None:
    """As of a line that was mixed with another rank's."""
    twice = [
        TimedOut(rank=1, seq=4, op="broadcast", elements=1, group="dp", enqueued=4, line=n, group_rank=n)
        for n in (0, 2)
    ]
    assert watchdog.members_of(twice) == [1]


@pytest.mark.parametrize(
    ("op", "elements", "output"), [("_ALLGATHER_BASE", 1024, 4096), ("_REDUCE_SCATTER_BASE", 4096, 1024)]
)
def test_sizes_of_a_gathering_call_tell_how_many_ranks_there_are(op: str, elements: int, output: int) -> None:
    reports = timed_out(watchdog_lines(1, op=op, elements=elements, output=output))
    assert watchdog.world_size(reports) == 4


def test_groups_of_one_description_are_told_apart_by_their_own_names(tmp_path: Path) -> None:
    for rank in range(4):
        group = f"1 PG GUID {8 + rank % 2}(mesh_dp)"
        (tmp_path / f"rank_{rank}.log").write_text(watchdog_lines(rank, group=group, number=rank // 2))
    verdict = judge_evidence(tmp_path)
    # Two pairs, each stuck in a call of its own: nobody of one is missing from the other's.
    assert verdict.guilty_ranks == ()
    assert verdict.cls == "unknown"


def test_a_rank_that_wrote_and_reported_no_timeout_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("".join(watchdog_lines(r) for r in (0, 1, 3)) + "[rank2]: step 12\n")
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (2,))
    assert verdict.confidence == RELIABILITY[Strength.LIKELY]
    assert "reported no timeout" in verdict.summary


def test_ranks_ended_before_their_own_timeout_are_accused_of_nothing(tmp_path: Path) -> None:
    wrote = "".join(f"[rank{rank}]: step 12\n" for rank in range(8))
    (tmp_path / "job.log").write_text(wrote + watchdog_lines(0) + watchdog_lines(3))
    verdict = judge_evidence(tmp_path)
    assert verdict.guilty_ranks == ()


def test_a_batch_of_transfers_has_no_size(tmp_path: Path) -> None:
    (report,) = timed_out(watchdog_lines(1, op="COALESCED", elements=2**64 - 1))
    assert (report.op, report.elements, report.output) == ("coalesced", None, None)


def test_the_line_of_the_failed_collective_is_named(tmp_path: Path) -> None:
    lines = [watchdog_lines(rank) for rank in (0, 1, 3)]
    stack = (
        "[rank1]:[E816 01:45:40.190 ProcessGroupNCCL.cpp:690] Stack trace of the failed collective: \n"
        "#0 all_reduce from /venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:2501\n"
        "#1 train from /job/train.py:52\n"
    )
    (tmp_path / "job.log").write_text(lines[0] + lines[1] + stack + lines[2])
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (2,))
