"""Calls of a rehearsal, matched as a backend would: what can be made, what differs, and what nobody answers."""

from __future__ import annotations

from typing import Any

import pytest

from nsadiag.agent.rehearsal.matching import Matching
from nsadiag.evidence.rehearsal.calls import ANY_SOURCE, Call

TENSOR = ((8, "float32"),)


def call(rank: int, number: int, op: str = "all_reduce", **more: Any) -> Call:
    about: dict[str, Any] = {"group": "0", "members": (0, 1), "tensors": TENSOR}
    return Call(rank=rank, number=number, op=op, **{**about, **more})


def met(matching: Matching, *calls: Call) -> list[tuple[tuple[int, int], ...]]:
    return [tuple((c.rank, c.number) for c in found.calls) for each in calls for found in matching.add(each)]


def test_a_call_is_made_when_all_members_have_announced_it() -> None:
    matching = Matching()
    assert met(matching, call(0, 1)) == []
    assert met(matching, call(1, 1)) == [((0, 1), (1, 1))]
    assert not matching.open_calls()


def test_calls_of_a_rank_wait_for_their_turn() -> None:
    matching = Matching()
    assert met(matching, call(0, 1), call(0, 2, "barrier"), call(1, 1)) == [((0, 1), (1, 1))]
    assert met(matching, call(1, 2, "barrier")) == [((0, 2), (1, 2))]


def test_groups_of_one_name_and_other_members_are_no_counterparts() -> None:
    matching = Matching()
    assert met(matching, call(0, 1, members=(0, 1)), call(1, 1, members=(1, 2))) == []
    assert not matching.difference()


@pytest.mark.parametrize(
    "other",
    [
        {"op": "barrier", "tensors": ()},
        {"tensors": ((9, "float32"),)},
        {"tensors": ((8, "bfloat16"),)},
        {"reduction": "MAX"},
    ],
    ids=["operation", "size", "dtype", "reduction"],
)
def test_what_must_be_equal_and_is_not_is_a_difference(other: dict[str, Any]) -> None:
    matching = Matching()
    assert met(matching, call(1, 1, **other), call(0, 1)) == []
    assert [c.rank for c in matching.difference()] == [0, 1]  # in whatever order they came


def test_roots_differ() -> None:
    matching = Matching()
    met(matching, call(0, 1, "broadcast", root=0), call(1, 1, "broadcast", root=1))
    assert len(matching.difference()) == 2


def test_what_one_sends_each_other_must_expect() -> None:
    exchange: dict[str, Any] = {"op": "all_to_all", "tensors": ()}
    good, bad = Matching(), Matching()
    a = call(0, 1, sent=(1, 3), received=(1, 2), **exchange)
    assert met(good, a, call(1, 1, sent=(2, 5), received=(3, 5), **exchange)) == [((0, 1), (1, 1))]
    assert met(bad, a, call(1, 1, sent=(2, 5), received=(4, 5), **exchange)) == []
    assert len(bad.difference()) == 2


def test_a_transfer_meets_its_counterpart_by_peer_and_tag() -> None:
    matching = Matching()
    assert met(matching, call(0, 1, "send", peer=1, tag=7), call(1, 1, "recv", peer=0, tag=8)) == []
    assert met(matching, call(1, 2, "recv", peer=0, tag=7)) == [((0, 1), (1, 2))]
    assert [c.tag for c in matching.open_calls()] == [8]


def test_a_receive_from_anybody_takes_whoever_sends() -> None:
    matching = Matching()
    assert met(matching, call(1, 1, "recv", peer=ANY_SOURCE), call(0, 1, "send", peer=1)) == [
        ((0, 1), (1, 1))
    ]


def test_a_transfer_of_another_size_is_a_difference() -> None:
    matching = Matching()
    met(matching, call(0, 1, "send", peer=1), call(1, 1, "recv", peer=0, tensors=((9, "float32"),)))
    assert [c.op for c in matching.difference()] == ["send", "recv"]


def test_a_call_that_needs_a_rank_whose_program_is_over_has_no_answer() -> None:
    matching = Matching()
    met(matching, call(0, 1))
    assert not matching.unanswerable()
    matching.ended.add(1)
    assert [c.rank for c in matching.unanswerable()] == [0]


def test_a_send_to_a_rank_that_has_ended_has_no_answer() -> None:
    matching = Matching()
    matching.ended.add(1)
    met(matching, call(0, 1, "send", peer=1))
    assert [c.op for c in matching.unanswerable()] == ["send"]


def test_clocks_follow_the_one_that_is_ahead() -> None:
    matching = Matching()
    list(matching.add(call(0, 1, ahead_s=3.0)))
    (found,) = matching.add(call(1, 1, ahead_s=60.0))
    assert found.ahead_s == 60.0


def test_a_group_that_its_members_know_by_other_names_is_never_created() -> None:
    matching = Matching()
    mine, theirs = call(0, 1, "new_group", group="a"), call(1, 1, "new_group", group="b")
    assert met(matching, mine) == [] and not matching.difference()
    assert met(matching, theirs) == []
    assert matching.difference() == [mine, theirs]


def test_groups_that_both_members_are_creating_are_no_difference() -> None:
    matching = Matching()
    assert met(matching, call(0, 1, "new_group", group="a"), call(1, 1, "new_group", group="b")) == []
    assert met(matching, call(0, 2, "new_group", group="b"), call(1, 2, "new_group", group="a")) == [
        ((0, 2), (1, 1)), ((0, 1), (1, 2)),
    ]  # fmt: skip
    assert not matching.difference()
