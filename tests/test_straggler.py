"""Who is late, by evidence of jobs that really ran: and for how long it has to be so."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import archive_of, unpack

from nsadiag.analysis.detectors import straggler_rank
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.tables import Tables


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
