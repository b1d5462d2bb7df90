"""Recordings of programs that others wrote, or of jobs that failed before they began: the verdict is their author's truth."""

from __future__ import annotations

import pytest
from support.recordings.golden import strangers
from support.recordings.program_record import PROGRAMS, archive_of, misses, truths
from support.recordings.verdicts import Recordings, Verdicts


@pytest.mark.parametrize("name", truths())
def test_the_verdict_is_the_truth(name: str, verdicts: Verdicts, recordings: Recordings) -> None:
    verdict = verdicts.of(archive_of(name))
    assert misses(truths()[name], verdict) == [], verdict["summary"]
    backwards = verdicts.backwards(archive_of(name)).verdict
    assert misses(truths()[name], backwards) == []
    assert strangers(recordings.of(archive_of(name)).path) == set()


def test_every_archive_has_its_truth() -> None:
    assert {path.name.removesuffix(".tar.xz") for path in PROGRAMS.glob("*.tar.xz")} == set(truths())
