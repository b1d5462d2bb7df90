"""What other tools left of a job is judged by the rules that judge what nsadiag recorded, in any order of its ranks."""

from __future__ import annotations

import pytest
from support.recordings.collected import COLLECTED, archive_of
from support.recordings.collected_logs import RECORDED
from support.recordings.verdicts import Recordings, Verdicts, backwards_of

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.resolve import resolve
from nsadiag.analysis.verdict import judge_evidence


@pytest.mark.parametrize("name", RECORDED)
def test_the_recording_comes_to_its_verdict(name: str, recordings: Recordings, verdicts: Verdicts) -> None:
    told, run = RECORDED[name], recordings.of(archive_of(name))
    verdict = judge_evidence(run.path)
    assert (verdict.cls, verdict.outcome, verdict.guilty_ranks) == (told.cls, told.outcome, told.guilty)
    backwards = verdicts.backwards(archive_of(name)).verdict
    assert (backwards["class"], tuple(backwards["guilty_ranks"])) == (told.cls, told.guilty)
    cited = [run.path / item.source.partition("#")[0] for item in verdict.evidence]
    # Of a file in an archive, the archive is there.
    assert all(any(place.is_file() for place in (path, *path.parents)) for path in cited), cited
    assert verdict.evidence or verdict.cls == "unknown"


@pytest.mark.parametrize("name", RECORDED)
def test_the_rule_that_is_meant_concludes(name: str, recordings: Recordings) -> None:
    cell = load_cell(recordings.of(archive_of(name)).path)
    for each in (cell, backwards_of(cell)):
        winner = resolve(Case(each)).winner
        assert winner is not None and winner.rule.name == RECORDED[name].mechanism


def test_every_archive_has_its_verdict() -> None:
    assert {path.name.partition(".")[0] for path in COLLECTED.iterdir()} == set(RECORDED)
