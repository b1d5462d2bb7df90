"""Ids of communicators that were never published."""

from pathlib import Path

from support.recordings.collected import NO_ID, raised

from nsadiag.analysis.verdict import judge_evidence


def test_the_first_rank_is_waited_for_and_not_whoever_raised(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("".join(raised(NO_ID.format(rank=r), rank=r) for r in (1, 2, 3)))
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks, verdict.blocked_ranks) == ("missing_rank", (0,), (1, 2, 3))


def test_a_message_names_its_rank_where_no_prefix_does(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(raised(NO_ID.format(rank=2)))
    verdict = judge_evidence(tmp_path)
    assert (verdict.guilty_ranks, verdict.blocked_ranks) == ((0,), (2,))


def test_ranks_with_other_numbers_in_the_group_name_nobody(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(raised(NO_ID.format(rank=1), rank=5))
    verdict = judge_evidence(tmp_path)
    assert verdict.guilty_ranks == ()
    assert "first rank of that group" in verdict.summary


def test_an_error_of_the_first_rank_itself_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        raised("ValueError: no data", rank=0) + raised(NO_ID.format(rank=1), rank=1)
    )
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_exception", (0,))
