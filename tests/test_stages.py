"""Whose number of messages is its own, in a row of stages."""

import itertools
from typing import Any

import pandas as pd
import pytest

from nsadiag.analysis.rules.desync.messages.pipeline_stages import odd_stage, stray_tag


def messages(*per_rank: list[str], step: int = 3, tag: int = 0) -> pd.DataFrame:
    """What each rank sends and receives in one step, as "0>1" from rank 0 to rank 1; an earlier step had one of each."""
    rows: list[dict[str, Any]] = []
    clock = itertools.count()
    for number in (step - 1, step):
        for rank, done in enumerate(per_rank):
            for word in done if number == step else dict.fromkeys(done):
                sender, receiver = map(int, word.split(">"))
                rows.append({"rank": rank, "sender": sender, "receiver": receiver, "tag": tag, "step": number, "begin_s": next(clock)})  # fmt: skip
    return pd.DataFrame(rows)


def test_a_stage_that_takes_in_fewer_than_both_its_neighbours_have_is_the_odd_one() -> None:
    # Rank 0 is in its fifth send and rank 2 in its fifth receive; rank 1 has gone on to the gradients after four.
    middle = ["0>1", "1>2"] * 4 + ["2>1"]
    assert odd_stage(messages(["0>1"] * 5, middle, ["1>2"] * 5), {1, 2}) == 1


def test_on_the_way_back_the_same_is_only_a_consequence() -> None:
    # Rank 2 goes back after four of five; rank 0 waits for the first gradient, as rank 2 sends it and rank 1 does not take it.
    first, middle = ["0>1"] * 5 + ["1>0"], ["0>1", "1>2"] * 5
    assert odd_stage(messages(first, middle, ["1>2"] * 4 + ["2>1"]), {1, 2}) == 2


@pytest.mark.parametrize(
    "calls",
    [
        messages(["0>1"] * 5, ["0>1", "1>2"] * 5, ["1>2"] * 5),  # all alike
        messages(["0>1"] * 5, ["0>1", "1>2"] * 4, ["1>2"] * 3),  # each its own
        messages(["0>1"] * 5, ["0>1"] * 4),  # of two nobody can tell
        messages(["0>1", "0>2"] * 5, ["0>1", "1>2"] * 4, ["1>2", "0>2"] * 5),  # no row
    ],
)
def test_nobody_is_odd_otherwise(calls: pd.DataFrame) -> None:
    assert odd_stage(calls, {0, 1}) is None
    assert odd_stage(pd.concat([calls, calls.assign(tag=7)]), {0, 1}) is None


def tagged(links: dict[tuple[int, int, int], list[int]]) -> pd.DataFrame:
    """By rank, sender and receiver: the tags of its messages."""
    rows = [
        {"rank": rank, "sender": sender, "receiver": receiver, "tag": tag}
        for (rank, sender, receiver), tags in links.items()
        for tag in tags
    ]
    return pd.DataFrame(rows)


STEPS = [0, 1, 2, 3] * 3
ROW = {(0, 0, 1): [0, 1, 0], (1, 0, 1): [0, 1, 0], (1, 1, 2): [0, 1, 0], (2, 1, 2): [0, 1, 0]}
STRAY = {
    "who hands on by a count of its own": ({(1, 1, 2): [0, 1, 2]}, {(1, 2)}, 1),
    "who takes in by a count of its own": ({(1, 0, 1): [0, 1, 2], (1, 1, 2): [0, 1]}, {(0, 1)}, 1),
    "the first has nobody before it": ({(0, 0, 1): [0, 1, 2], (1, 1, 2): [0, 1]}, {(0, 1)}, 0),
    "all have the same tags": ({}, {(1, 2)}, None),
    "the neighbours do not agree": ({(0, 0, 1): [0, 1, 2], (1, 1, 2): [0, 1, 2]}, {(1, 2)}, None),
}


@pytest.mark.parametrize(("other", "pairs", "odd"), STRAY.values(), ids=STRAY)
def test_of_two_tags_that_do_not_meet_the_one_is_astray_that_no_neighbour_has(
    other: dict[tuple[int, int, int], list[int]], pairs: set[tuple[int, int]], odd: int | None
) -> None:
    links = {key: STEPS + (other.get(key) or last) for key, last in ROW.items()}
    assert stray_tag(tagged(links), pairs) == odd


@pytest.mark.parametrize(
    "links",
    [
        # Of two ranks alone nobody can tell.
        {(0, 0, 1): [*STEPS, 0, 1, 2], (1, 0, 1): [*STEPS, 0, 1, 0]},
        # The link before has always had tags of its own.
        {(0, 0, 1): [5] * 15, (1, 0, 1): [5] * 15, (1, 1, 2): [*STEPS, 0, 1, 2], (2, 1, 2): [*STEPS, 0, 1, 0]},
    ],
)  # fmt: skip
def test_without_neighbours_that_number_alike_no_tag_is_astray(
    links: dict[tuple[int, int, int], list[int]],
) -> None:
    assert stray_tag(tagged(links), {(0, 1), (1, 2)}) is None
