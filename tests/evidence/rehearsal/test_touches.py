"""Which accesses of two ranks to a file may come in either order, and who is held to turn it."""

from __future__ import annotations

from typing import Any

import pytest

from nsadiag.evidence.rehearsal.touches import Access, Hold, Touch, gave_time, hold_of, orders

MS = 1_000_000


def touch(rank: int, what: Any, at_ms: int, path: str = "/job/a.pt", **more: Any) -> Touch:
    access = Access(rank=rank, what=what, path=path, place=f"/job/train.py:{10 + rank}:load")
    return Touch(**{"access": access, "calls": 1, "known": {0: 1, 1: 1}, "at_ns": at_ms * MS, **more})


def held(*touches: Touch) -> list[tuple[int, str, str]]:
    """The rank that is held, before what, and until what."""
    return [(hold.late.rank, hold.late.what, hold.early.what) for hold in orders([*touches])]


def test_who_found_nothing_is_held_until_it_is_there() -> None:
    looked, wrote = touch(1, "look", 5, found=False), touch(0, "write", 400)
    assert held(looked, wrote) == [(1, "look", "write")]


def test_who_wrote_what_another_found_is_held_until_it_has_looked() -> None:
    assert held(touch(0, "write", 5), touch(1, "look", 400)) == [(0, "write", "look")]


def test_what_was_not_there_though_the_write_had_begun_counts_as_before() -> None:
    assert held(touch(0, "write", 5), touch(1, "look", 9, found=False)) == [(1, "look", "write")]


def test_of_a_directory_either_may_have_been_first_where_they_were_close() -> None:
    wrote, listed = touch(0, "write", 5, path="/job/out/1.pt"), touch(1, "list", 9, path="/job/out")
    assert held(wrote, listed) == [(1, "list", "write"), (0, "write", "list")]


def test_files_that_are_removed() -> None:
    assert held(touch(0, "remove", 5), touch(1, "look", 400, found=False)) == [(0, "remove", "look")]


@pytest.mark.parametrize(
    "touches",
    [
        # A call that both took part in lies between the two.
        (touch(0, "write", 5), touch(1, "look", 400, known={0: 2, 1: 2}, calls=2)),
        (touch(1, "look", 5, found=False), touch(0, "write", 400, known={0: 2, 1: 2}, calls=2)),
        (touch(0, "write", 5), touch(1, "look", 400, path="/job/b.pt")),
        (touch(0, "write", 5), touch(0, "look", 400)),
        (touch(0, "look", 5), touch(1, "read", 400)),
        # It sleeps, so that the other has time.
        (touch(0, "write", 5), touch(1, "look", 400, slept=True)),
    ],
    ids=[
        "a call between",
        "a call between, read first",
        "other files",
        "one rank",
        "nobody writes",
        "sleeps",
    ],
)
def test_what_has_an_order_or_needs_none(touches: tuple[Touch, ...]) -> None:
    assert held(*touches) == []


def test_a_hold_survives_the_environment_and_says_its_order() -> None:
    (hold,) = orders([touch(1, "look", 5, found=False), touch(0, "write", 400)])
    assert isinstance(hold, Hold)
    assert hold_of(hold.to_json()) == hold
    assert hold.words() == "rank 0 had written a.pt (train.py:10) before rank 1 looked for a.pt (train.py:11)"


def test_a_rank_gave_time_where_it_slept_before_it_looked_in_vain() -> None:
    in_vain = touch(1, "read", 5, found=False, slept=True)
    assert gave_time([in_vain])
    assert not gave_time([touch(1, "read", 5, found=False)])
    assert not gave_time([in_vain, touch(1, "look", 900, slept=True)]), "it polls, and has found it"
