"""Who is late, by evidence of jobs that really ran: and for how long it has to be so."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import archive_of, unpack

from nsadiag.analysis.detectors import straggler_rank
from nsadiag.analysis.detectors.straggler_rank import alike
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.blackbox import Kind


@pytest.mark.parametrize(("seconds", "found"), [(9.0, [1]), (2.0, [])])
def test_a_rank_that_is_late_for_a_second_or_two_may_be_starved_by_a_neighbour(
    tmp_path: Path, seconds: float, found: list[int]
) -> None:
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    steps = Tables(cell=cell).steps
    observed = steps.groupby("rank").step_s.cumsum() <= seconds
    tables = Tables(cell=cell)
    tables.__dict__["steps"] = steps[observed]
    guilty = [rank for each in straggler_rank(cell, tables) for rank in each.guilty_ranks]
    assert steps[observed]["step"].nunique() > 7 and guilty == found


def test_steps_that_a_rank_makes_for_its_peers_after_its_own_data_say_nothing_of_who_is_late(
    tmp_path: Path,
) -> None:
    """Under Join it goes along in their collectives, and in the optimizer's where that is sharded: without a model."""
    cell = load_cell(unpack(archive_of("straggler_slow_input"), tmp_path).path)
    whole = Tables(cell=cell)
    assert whole.steps.computed.all()
    own = whole.steps.step < 5
    events = whole.events
    model = events.kind.isin((Kind.FORWARD, Kind.BACKWARD, Kind.GRADIENT))
    joined = Tables(cell=cell)
    joined.__dict__["events"] = events[
        ~(model & (events["rank"] == 0) & (events.t_s > whole.steps[own].end_s.max()))
    ]
    assert not joined.steps.computed.all()
    assert list(straggler_rank(cell, whole)) and not list(straggler_rank(cell, joined))
    # Where no rank's model is seen at all, as where it is no module, all steps are of one kind.
    unseen = Tables(cell=cell)
    unseen.__dict__["events"] = events[~model]
    assert len(alike(unseen.steps)) == len(alike(whole.steps))
