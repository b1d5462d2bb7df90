"""The two lines of a divergence: the stack's, and the one that the source tells, or the turns of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recordings.golden import archive_of, turned_of, unpack
from support.recordings.verdicts import Verdicts

from nsadiag.analysis.verdict import judge_directory


@pytest.mark.parametrize(
    ("name", "stands", "because", "origin"),
    [
        ("data_divergent_patience", "dist.all_reduce(best", "if stopper.stop:", "rank"),
        ("rank_conditional_left_out_after_a_while", "", "if step % EVERY == 0 and dist.get_rank() not in muted:", "rank"),
        ("uneven_inputs_shards", "dist.barrier()", "self.length = sum(self.FILE_LENGTHS[rank::world_size])", "rank"),
    ],
)  # fmt: skip
def test_a_run_without_paths_infers_the_cause_from_its_source(
    name: str, stands: str, because: str, origin: str, verdicts: Verdicts
) -> None:
    verdict = verdicts.of(archive_of(name))
    assert (verdict["stands_at"]["code"] or "").startswith(stands)
    assert (verdict["because"]["code"], verdict["because"]["how"]) == (because, "inferred")
    assert verdict["because"]["origin"] == origin
    assert verdict["because"]["chain"][0]["ranks"] == list(verdict["guilty_ranks"])


@pytest.mark.parametrize("name", ["local_lock_deadlock_lock_order", "rank_exception_bad_batch"])
def test_what_is_no_divergence_has_neither(name: str, verdicts: Verdicts) -> None:
    verdict = verdicts.of(archive_of(name))
    assert (verdict["stands_at"], verdict["because"]) == (None, None)


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("data_divergent_patience", [65, 26, 27, 54, 48]),
        ("data_divergent_flag_before_backward", [30]),
        ("uneven_inputs_iterable", [53, 36, 35, 30, 70]),
    ],
)
def test_turns_of_a_real_job_raise_the_cause_and_change_neither_class_nor_place(
    name: str, chain: list[int], tmp_path: Path
) -> None:
    """One rank of each ended by an exception as its peer had ended: that is on its path, and not why they diverged."""
    run = unpack(turned_of(name), tmp_path)
    told = judge_directory(run.path)
    assert told.because is not None
    assert (told.because.how, [link.at.line for link in told.because.chain]) == ("recorded", chain)
    for turns in run.path.glob("ranks/*/paths.*"):
        turns.unlink()
    guessed = judge_directory(run.path)
    assert guessed.because is not None
    assert guessed.because.how == "inferred"
    for same in ("cls", "outcome", "guilty_ranks", "stands_at"):
        assert getattr(told, same) == getattr(guessed, same)
