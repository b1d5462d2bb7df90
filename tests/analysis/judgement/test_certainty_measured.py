"""The confidence of a strength, on evidence that others collected: drawn to how often it was right there."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.collected import watchdog_lines

from nsadiag.analysis.judgement import certainty
from nsadiag.analysis.judgement.certainty import Measured, confidence_of
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.records import Strength


@pytest.fixture
def cell(tmp_path: Path) -> CellEvidence:
    (tmp_path / "job.log").write_text(watchdog_lines(0))
    return load_cell(tmp_path)


def test_what_was_measured_draws_the_number_to_it(
    cell: CellEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {Strength.LIKELY: Measured(right=10, of=40)}
    monkeypatch.setattr(certainty, "RELIABILITY", measured)
    assert 0.25 < confidence_of(cell, Strength.LIKELY) < 0.75
    assert confidence_of(cell, Strength.WEAK) == Strength.WEAK.value


def test_of_a_job_that_nsadiag_recorded_the_strength_is_the_number(
    cell: CellEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certainty, "RELIABILITY", {Strength.LIKELY: Measured(right=0, of=90)})
    recorded = replace(cell, collected=None)
    assert confidence_of(recorded, Strength.LIKELY) == Strength.LIKELY.value


def test_levels_keep_their_order(cell: CellEvidence) -> None:
    numbers = [confidence_of(cell, each) for each in Strength]
    assert numbers == sorted(numbers, reverse=True)
