"""Jobs for exactly so many ranks: of a repair one rank more shows nothing, and only then."""

from __future__ import annotations

import pytest

from nsadiag.evidence.rehearsal.witnessed import Seen
from nsadiag.repair.change import Change
from nsadiag.repair.record import RankRecord, Record
from nsadiag.repair.sizes import cannot_grow

# A pipeline of two stages: rank 0 sends, rank 1 receives a part too few. Any other rank sends, too, and to rank 1.
BEFORE = "parts = 5\nsend(parts)\nrecv(parts)\nbarrier()\n"
CHANGE = Change.of({"t.py": BEFORE}, {"t.py": "# as many as are sent\n" + BEFORE.replace("5", "6")})
SMALL, LARGE = (0, 1), (0, 1, 2)


def seen(op: str, line: int, members: tuple[int, ...], value: str = "") -> Seen:
    return Seen(what="call", op=op, members=members, place=f"t.py:{line}:step", value=value)


def record(members: tuple[int, ...], moved: int, parts: int, *end: str, third: int = 2) -> Record:
    begun = seen("new_group", 2 + moved, members)
    ranks = {
        0: RankRecord(seen=(begun, *(seen("send", 2 + moved, members, str(n)) for n in range(parts)), *(seen(op, 4 + moved, members) for op in end))),
        1: RankRecord(seen=(begun, *(seen("recv", 3 + moved, members) for _ in range(parts)), *(seen(op, 4 + moved, members) for op in end))),
    }  # fmt: skip
    if members == LARGE:
        ranks[2] = RankRecord(
            seen=(
                begun,
                seen("send", third + moved, members, "x"),
            )
        )
    return Record(answer="differs", why="every rank waits for another one", ranks=ranks)


FAILED, LARGER = record(SMALL, 0, 5), record(LARGE, 0, 5)
REPAIRED, LARGER_REPAIRED = record(SMALL, 1, 6, "barrier"), record(LARGE, 1, 6, "barrier")


def test_a_rank_that_no_other_takes_notice_of_shows_nothing_of_a_patch() -> None:
    why = cannot_grow(FAILED, REPAIRED, LARGER, LARGER_REPAIRED, CHANGE)
    assert why == "rank 2 stands at its first call, the send at t.py:3, and no rank takes notice of it"


@pytest.mark.parametrize(
    ("larger", "larger_repaired"),
    [
        pytest.param(LARGER, record(LARGE, 1, 5), id="the fault is still there"),
        pytest.param(LARGER, record(LARGE, 1, 6, "barrier", third=3), id="the rank does otherwise with the patch"),
        pytest.param(record(LARGE, 0, 7), LARGER_REPAIRED, id="the others did otherwise for the rank"),
        pytest.param(LARGER, record(LARGE, 1, 6, "barrier", "barrier"), id="the rank meets the others"),
    ],
)  # fmt: skip
def test_a_patch_that_may_be_at_fault_is_not_excused(larger: Record, larger_repaired: Record) -> None:
    assert not cannot_grow(FAILED, REPAIRED, larger, larger_repaired, CHANGE)


@pytest.mark.parametrize(("at_two", "excused"), [("differs", True), ("raised", False)])
def test_an_error_on_one_rank_more_is_excused_where_it_is_not_the_error_that_is_repaired(
    at_two: str, excused: bool
) -> None:
    raised = Record(answer="raised", why="ValueError: no part for rank 2")
    failed = Record(answer=at_two, why=raised.why if at_two == "raised" else "")
    assert bool(cannot_grow(failed, REPAIRED, raised, raised, CHANGE)) == excused
