"""Ranks of one group that timed out at different numbers."""

from pathlib import Path

import pytest
from support.recordings.collected import watchdog_lines

from nsadiag.analysis.verdict import judge_evidence
from nsadiag.evidence.records import Verdict


def judged(folder: Path, *lines: str) -> Verdict:
    (folder / "job.log").write_text("".join(lines))
    return judge_evidence(folder)


def test_the_one_behind_fifteen_others_is_named_and_no_network(tmp_path: Path) -> None:
    ahead = (watchdog_lines(rank, seq=4411) for rank in range(16) if rank != 9)
    verdict = judged(tmp_path, watchdog_lines(9, seq=4410), *ahead)
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (9,))
    assert len(verdict.blocked_ranks) == 15
    assert "#4410" in verdict.summary
    assert "#4411" in verdict.summary
    assert "network_stall" in {each.cls for each in verdict.rejected}


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_ranks_the_one_that_went_on_to_a_barrier_is_named(tmp_path: Path, first: int) -> None:
    lines = [
        watchdog_lines(1, seq=313, op="_ALLGATHER_BASE", elements=262668288, output=525336576),
        watchdog_lines(0, seq=315, elements=1),
    ]
    verdict = judged(tmp_path, *lines[:: 1 if first else -1])
    assert (verdict.cls, verdict.guilty_ranks) == ("collective_order_mismatch", (0,))
    assert "as of a barrier" in verdict.summary


def test_of_two_ranks_in_equal_calls_the_one_behind_is_named(tmp_path: Path) -> None:
    verdict = judged(tmp_path, watchdog_lines(1, seq=313), watchdog_lines(0, seq=315))
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (1,))


def test_of_two_ranks_in_calls_of_two_kinds_nobody_is_named_without_a_clue(tmp_path: Path) -> None:
    bucket = watchdog_lines(0, seq=1516, elements=25427968)
    verdict = judged(tmp_path, bucket, watchdog_lines(1, seq=1517, op="BROADCAST", elements=4096))
    assert (verdict.cls, verdict.guilty_ranks) == ("collective_order_mismatch", ())
    assert verdict.blocked_ranks == (0, 1)
    assert "#1516" in verdict.summary
    assert "#1517" in verdict.summary


def test_the_answer_speaks_of_no_dump(tmp_path: Path) -> None:
    verdict = judged(tmp_path, watchdog_lines(1, seq=313), watchdog_lines(0, seq=315))
    said = [verdict.summary, *(e.claim for e in verdict.evidence), *verdict.gaps, verdict.fix or ""]
    assert not [each for each in said if "dump" in each]


def test_numbers_far_apart_without_a_groups_name_are_of_two_groups(tmp_path: Path) -> None:
    first, second = (watchdog_lines(r, seq=n).splitlines(True)[0] for r, n in ((7, 64088), (0, 96117)))
    verdict = judged(tmp_path, first, second)
    assert (verdict.cls, verdict.guilty_ranks) == ("unknown", ())
    assert "behind" not in verdict.summary
