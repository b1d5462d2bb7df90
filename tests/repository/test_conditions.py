"""Two figures of the analysis that may only fall: conditions that no recording shows both ways, and mutants that none notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.mutation.conditions import KINDS, MUTANTS, REPO, conditions_in, fixed_mutants

FIGURES: dict[str, int] = json.loads((Path(__file__).parent / "figures.json").read_text())
LEAST = 150  # of 200: when fewer are left, draw others


def measured(what: str) -> list[Any]:
    """In a process of its own, which imports the analysis instrumented; sets are in the same order each time."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.mutation.conditions", what, "--json"],
        cwd=REPO,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def test_no_more_conditions_come_out_one_way_on_every_recording_than_before() -> None:
    found = measured("one-sided")
    assert len(found) <= FIGURES["one_sided"], "record a job that shows the other side, or do without"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_more_of_the_fixed_mutants_go_unnoticed_than_before() -> None:
    found = measured("survivors")
    assert len(found) <= FIGURES["survivors"], found


def test_most_of_the_fixed_mutants_are_of_conditions_that_are_still_there() -> None:
    mutants = fixed_mutants()
    assert len(mutants) == len(set(mutants)) == 200, MUTANTS
    assert {mutant.kind for mutant in mutants} == set(KINDS)
    files = {mutant.file for mutant in mutants if (REPO / mutant.file).exists()}
    there = {condition[:3] for file in files for condition in conditions_in(REPO / file)}
    assert sum(mutant[:3] in there for mutant in mutants) >= LEAST
