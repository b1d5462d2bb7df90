"""A glance at rings, which says whether anything moved since they were read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.analysis.snapshot import has_moved, later, ranks_now
from nsadiag.evidence.layout import RunDir, write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase

CAPACITY = 4


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    for rank in (0, 1):
        RunDir(path=tmp_path).rank(rank).blackbox.parent.mkdir(parents=True)
    return RunDir(path=tmp_path)


def boxes(run: RunDir) -> list[BlackBox]:
    return [BlackBox(run.rank(rank).blackbox, rank=rank, world_size=2, capacity=CAPACITY) for rank in (0, 1)]


@pytest.mark.parametrize("written", [0, 1, CAPACITY, CAPACITY + 1])
def test_one_event_more_of_one_rank_is_a_move(run: RunDir, written: int) -> None:
    first, second = boxes(run)
    for _ in range(written):
        first.emit(Kind.STEP, Phase.POINT)
        second.emit(Kind.STEP, Phase.POINT)
    seen = list(ranks_now(run))
    assert [rank.event for rank in seen] == [written, written]
    assert not has_moved(run, seen)
    second.emit(Kind.STEP, Phase.POINT)
    assert has_moved(run, seen)
    assert not has_moved(run, list(ranks_now(run)))


def test_a_rank_that_ends_or_comes_is_a_move(run: RunDir) -> None:
    boxes(run)
    seen = list(ranks_now(run))
    assert has_moved(run, seen[:1])
    write_json(run.ends, {"0": {"t_s": 3.0}})
    assert has_moved(run, seen)


def test_silences_and_waits_grow_and_a_rank_that_nobody_waits_for_stays(run: RunDir) -> None:
    first, _ = boxes(run)
    first.emit(Kind.COLLECTIVE, Phase.BEGIN)
    for rank in ranks_now(run):
        after = later(rank, 5.0)
        quiet = None if rank.quiet_s is None else round(rank.quiet_s + 5.0, 1)
        assert after.quiet_s == quiet
        assert after.waited_for_s == round(rank.waited_for_s + (5.0 if rank.waiters else 0.0), 1)
