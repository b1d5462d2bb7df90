"""Stacks of several processes at several places."""

from pathlib import Path

from support.recordings.collected import REDUCES, SAVES, in_backward, of_ray, saving, stepping

from nsadiag.analysis.verdict import judge_evidence
from nsadiag.evidence.records import Verdict


def judged(folder: Path, *texts: str) -> Verdict:
    for number, text in enumerate(texts):
        (folder / f"stack_rank_{number}.txt").write_text(text)
    return judge_evidence(folder)


def test_two_comparable_camps_are_said_and_no_rank_is_blamed(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *map(in_backward, (41, 42, 43)), *map(stepping, (44, 45)))
    assert (verdict.cls, verdict.guilty_ranks) == ("collective_order_mismatch", ())
    assert "3 ranks (0, 1, 2) in reduce_scatter_tensor" in verdict.summary
    assert "2 ranks (3, 4) in all_reduce" in verdict.summary
    assert "train.py:52" in verdict.summary
    assert "set_z3_leaf_modules" in (verdict.fix or "")


def test_one_that_is_in_another_call_than_many_is_named(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *map(in_backward, (41, 42, 43, 44)), stepping(45))
    assert (verdict.cls, verdict.guilty_ranks) == ("collective_order_mismatch", (4,))
    assert verdict.where is not None
    assert (verdict.where.file, verdict.where.line) == ("/job/train.py", 60)


def test_several_that_are_in_no_call_are_waited_for(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *map(stepping, (41, 42, 43)), *map(saving, (44, 45)))
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (3, 4))
    assert verdict.where is not None
    assert (verdict.where.file, verdict.where.line) == ("/job/checkpoints.py", 40)


def test_as_many_in_a_call_as_out_of_it_are_described_and_not_judged(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *map(stepping, (41, 42)), *map(saving, (44, 45)))
    assert (verdict.cls, verdict.guilty_ranks) == ("unknown", ())
    assert "2 ranks (0, 1) in all_reduce" in verdict.summary
    assert "checkpoints.py:40" in verdict.summary


def test_the_line_is_of_the_thread_that_works_and_not_of_rays_loop(tmp_path: Path) -> None:
    verdict = judged(
        tmp_path, *(of_ray(pid, REDUCES) for pid in (41, 42, 43)), saving(44).replace("44", "48")
    )
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (3,))
    assert verdict.peers_at is not None
    assert (verdict.peers_at.file, verdict.peers_at.line) == ("/job/train.py", 60)


def test_a_worker_of_rays_that_is_in_no_call_stands_where_its_users_thread_does(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *(of_ray(pid, REDUCES) for pid in (41, 42, 43)), of_ray(44, SAVES))
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (3,))
    assert verdict.where is not None
    assert (verdict.where.file, verdict.where.line) == ("/job/checkpoints.py", 40)
