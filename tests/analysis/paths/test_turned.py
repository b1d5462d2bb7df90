"""Recorded turns, read: what was given up by one rank counts on none, and long paths begin at the same call."""

from __future__ import annotations

import array
import dataclasses

from nsadiag.analysis.paths import turned
from nsadiag.evidence.rehearsal.paths import LOW, MOST_NUMBER, NUMBER, WHAT, Named, Walked, Word
from nsadiag.evidence.ring.turns import (
    FRAME,
    HALF,
    HEADER,
    MARK,
    ROOM,
    UNWOUND,
    Flow,
    Turn,
    Turns,
    Way,
    read_turns,
)

# while n:            # line 2, branch at 1 to 2 or 5
#     if n: call()    # line 3, branch at 3 to 4 or 0
FLOW = f"0,2,0,0 1,2,{Flow.BRANCH:d},5 2,3,0,0 3,3,{Flow.BRANCH:d},4 4,4,{Flow.JUMP:d},0 5,5,{Flow.END:d},0"
NAMES = {
    1: Named(number=1, text="main", file="/job/t.py", line=1, flow=FLOW),
    2: Named(number=2, text="all_reduce\tdefault_pg\t0,1\t,,,\tfloat32[1]"),
    3: Named(number=3, text="n", line=3, code=1),
}


def word(what: Turn, number: int, low: int = 0) -> int:
    return int(what) << WHAT | number << NUMBER | low


def turn(begin: int, to: int) -> int:
    return word(Turn.BRANCH, 1, begin << HALF | to)


def of(*words: int, begins: bool = True) -> Turns:
    return Turns(words=array.array("Q", words), names=NAMES, begins=begins)


def shown(walked: Walked) -> list[str]:
    return [
        f"{Word(each >> WHAT).name} {walked.names[n].text.partition(chr(9))[0] if (n := each >> NUMBER & MOST_NUMBER) else each & LOW}"
        for each in walked.words
    ]


START, END = word(Turn.START, 1), (turn(1, 5), word(Turn.LEFT, 1, 5))
ROUND = (turn(1, 2), word(Turn.INT, 3, 7), turn(3, 4), word(Turn.AT, 1, 4), word(Turn.CALL, 2, 1))


def test_lines_between_turns_follow_from_the_code() -> None:
    assert shown(turned.walked_of({0: of(START, *ROUND, *END)})[0]) == [
        "ENTER main", "LINE 2", "LINE 3", "NAME n", "VALUE 7", "LINE 4", "CALL all_reduce", "LINE 2", "LINE 5", "LEAVE 5",
    ]  # fmt: skip


def test_the_shortest_way_goes_through_turns_that_are_not_recorded_alone() -> None:
    way = Way([(0, 2, Flow.ON, 0), (1, 2, Flow.BRANCH, 3), (2, 3, Flow.JUMP, 0), (3, 5, Flow.END, 0)])
    assert way.between(0, 3) is None
    assert way.between(0, 3, frozenset({1})) == ((2, False), (2, False), (5, False))
    assert way.between(2, 1) == ((3, False), (2, True), (2, False))


def test_what_one_rank_has_given_up_counts_on_none() -> None:
    gave_up = of(START, *ROUND, word(Turn.DROPPED, 1, 3), turn(1, 2), *END)
    whole = of(START, *ROUND, turn(1, 2), turn(3, 0), *END)
    found = turned.walked_of({0: gave_up, 1: whole})
    assert [each for each in shown(found[0]) if "CALL" not in each][-4:] == shown(found[1])[-4:]
    silent = turned.walked_of({0: of(START, *ROUND, word(Turn.DROPPED, 1, FRAME)), 1: whole})
    assert shown(silent[1]) == ["CALL all_reduce"]


def test_a_value_that_one_rank_has_given_up_is_told_of_none() -> None:
    found = turned.walked_of({0: of(START, word(Turn.UNREAD, 3), *END), 1: of(START, *ROUND, *END)})
    assert "VALUE 7" not in shown(found[1])


def test_paths_that_were_written_over_begin_at_a_call_that_all_ranks_have() -> None:
    def late(first: int) -> Turns:
        rounds = [
            each
            for n in range(first, 6)
            for each in (turn(1, 2), turn(3, 4), word(Turn.AT, 1, 4), word(Turn.CALL, 2, n))
        ]
        return of(word(Turn.HELD, 1, 4), *rounds, *END, begins=False)

    found = turned.walked_of({0: late(1), 1: late(3)})
    assert shown(found[0]) == shown(found[1])
    assert shown(found[0])[:3] == ["ENTER main", "LINE 4", "LINE 2"]
    assert sum(each.startswith("CALL") for each in shown(found[0])) == 2
    assert turned.walked_of({0: late(5), 1: of(START, *ROUND, begins=False)}) == {}


def test_both_banks_are_read_in_the_order_in_which_they_were_written() -> None:
    words = array.array("Q", bytes(8 * (HEADER + ROOM)))
    words[0], words[1], words[2], words[3] = MARK, ROOM + 2, ROOM, ROOM - 1
    words[HEADER + ROOM - 1], words[HEADER], words[HEADER + 1] = 11, 12, 13
    found = read_turns(words.tobytes(), ())
    assert found is not None
    assert [*found.words] == [11, 12, 13]
    assert not found.begins
    words[2] = ROOM + 3  # hostile: a bank that begins behind the end
    assert read_turns(words.tobytes(), ()) is None
    assert read_turns(b"", ()) is None


def test_the_path_of_a_rank_that_its_peers_end_ended_goes_up_to_that_exception() -> None:
    names = {**NAMES, 4: Named(number=4, text="RuntimeError")}
    raised = (word(Turn.AT, 1, 4), word(Turn.RAISED, 4, 4))
    left = word(Turn.LEFT, 1, 4 | UNWOUND)
    inner, handled = word(Turn.START, 1), word(Turn.HANDLED, 1, 4)
    # Raised in an inner frame, seen in the outer one, where a `finally` makes another round before it goes on.
    end = (
        word(Turn.AT, 1, 4),
        inner,
        turn(1, 2),
        turn(3, 4),
        *raised,
        left,
        *raised,
        handled,
        turn(1, 2),
        left,
    )

    def path(*words: int, victims: tuple[int, ...]) -> list[str]:
        return shown(turned.walked_of({0: dataclasses.replace(of(*words), names=names)}, victims)[0])

    ended = path(START, *ROUND, *end, victims=(0,))
    assert ended[-5:] == ["CALL all_reduce", "ENTER main", "LINE 2", "LINE 3", "LINE 4"]
    whole = path(START, *ROUND, *end, victims=())
    assert "RAISED RuntimeError" not in ended
    assert whole[: len(ended)] == ended
    assert whole[len(ended)] == "RAISED RuntimeError"
    # One that was caught, or behind which calls were made, ended nothing.
    went_on = (START, *ROUND, *raised, handled, turn(1, 2), *ROUND[2:], *END)
    assert path(*went_on, victims=(0,)) == path(*went_on, victims=())
