"""The two lines of a divergence in a run without recorded paths: the stack's, and the one that the source tells."""

from __future__ import annotations

import pytest
from support.recordings.golden import archive_of
from support.recordings.verdicts import Verdicts


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
