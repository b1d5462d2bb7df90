"""The launcher's root cause, where it is a victim."""

from pathlib import Path

from support.recordings.collected import FAILURES, watchdog_lines

from nsadiag.analysis.verdict import judge_evidence

ABORTED = FAILURES.replace(": 1 (pid", ": -6 (pid")


def test_the_first_to_end_for_want_of_a_silent_rank_is_called_a_victim(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("".join(map(watchdog_lines, (1, 2, 3))) + ABORTED)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("missing_rank", (0,))
    said = next(each for each in verdict.rejected if "torchrun calls rank 1" in each.because)
    assert "victim" in said.because
    assert said.source is not None


def test_a_root_cause_that_failed_by_itself_is_no_victim(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(FAILURES)
    verdict = judge_evidence(tmp_path)
    assert verdict.guilty_ranks == (1,)
    assert not [each for each in verdict.rejected if "victim" in each.because]
