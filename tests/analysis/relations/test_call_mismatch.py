"""What ranks asked of one another, compared: calls, transfers, groups."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.tables import case_of, pending, table

from nsadiag.analysis.facts.collectives import ASKED_COLUMNS, CALL_COLUMNS, TRANSFER_COLUMNS
from nsadiag.analysis.facts.groups import Groups, shown
from nsadiag.analysis.facts.locations import place
from nsadiag.analysis.outliers import Criterion, Outliers, minority, outlier_ranks
from nsadiag.analysis.relations.call_mismatch import CallArguments, Disagreement, in_black_boxes
from nsadiag.analysis.relations.call_outliers import call_outliers, is_out_of_order
from nsadiag.analysis.relations.messages.pairing import calls_of, left_short, misfits
from nsadiag.analysis.relations.pending import PendingCall
from nsadiag.analysis.rules.desync.messages.outliers import message_outliers
from nsadiag.analysis.rules.setup.process_group_mismatch import _by_members_alone
from nsadiag.evidence.documents.training import GroupSettings, Settings
from nsadiag.evidence.ring.blackbox import Kind, Phase

LINE = "/job/train.py:10:main"


def call(rank: int, number: int, op: str, tensors: str = "", **more: Any) -> dict[str, Any]:
    row = dict.fromkeys(ASKED_COLUMNS)
    known = {"rank": rank, "group": "default_pg", "call": number, "op": op, "tensors": tensors, "place": LINE}
    return {**row, **known, "thread": 1, "step": 0, **more}


def told(*rows: dict[str, Any]) -> list[Disagreement]:
    return in_black_boxes(case(*rows))


def cell() -> Any:
    return SimpleNamespace(
        rank=lambda number: SimpleNamespace(source=f"ranks/{number:05d}"),
        weight=lambda number: 1.0,
        collected=None,
    )


def case(*rows: dict[str, Any]) -> Any:
    asked = table(rows, columns=ASKED_COLUMNS)
    ranks = frozenset(int(r) for r in asked["rank"])
    events = asked.assign(kind=int(Kind.COLLECTIVE), phase=int(Phase.BEGIN), name=asked.op)
    groups = SimpleNamespace(members=lambda _: ranks)
    return case_of(cell(), asked=asked, events=events, groups=groups, thread_states={})


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_first_call_that_differs_is_found_whatever_the_order_of_ranks(order: tuple[int, ...]) -> None:
    rows = [call(r, n, "all_reduce", "float32[8]") for r in order for n in (3, 4)]
    rows += [call(r, 5, "all_reduce", "float32[8]" if r != 1 else "float32[4]") for r in order]
    rows += [call(r, 6, "barrier" if r else "all_reduce") for r in order]
    (found,) = told(*rows)
    assert (found.call, found.kind) == (5, "size")
    assert call_outliers(case(*rows), found) == Outliers(ranks=(1,), criterion=Criterion.MAJORITY)


def test_shapes_with_as_many_elements_agree_and_types_do_not() -> None:
    assert told(call(0, 1, "all_reduce", "float32[2,4]"), call(1, 1, "all_reduce", "float32[8]")) == []
    (found,) = told(call(0, 1, "all_reduce", "float32[8]"), call(1, 1, "all_reduce", "bfloat16[8]"))
    assert found.kind == "type"


def test_parts_of_different_sizes_agree_where_all_ranks_list_them_alike() -> None:
    parts = "(float32[3]+float32[5])"
    rows = [call(0, 1, "all_gather", f"{parts} float32[3]"), call(1, 1, "all_gather", f"{parts} float32[5]")]
    assert told(*rows) == []


def test_splits_that_differ_and_meet_are_no_mismatch() -> None:
    first = call(0, 1, "all_to_all_single", "float32[5,2] float32[3,2]", splits="1,4/1,2")
    second = call(1, 1, "all_to_all_single", "float32[3,2] float32[5,2]", splits="2,1/4,1")
    assert told(first, second) == []
    (found,) = told(first, {**second, "splits": "1,1/4,1", "tensors": "float32[2,2] float32[5,2]"})
    assert found.kind == "splits"


def test_a_rank_that_changed_what_it_asks_for_is_suspected_where_there_is_no_majority() -> None:
    rows = [call(r, n, "all_reduce", "float32[8]") for r in (0, 1) for n in (1, 2)]
    rows += [call(0, 3, "all_reduce", "float32[9]"), call(1, 3, "all_reduce", "float32[8]")]
    (found,) = told(*rows)
    assert call_outliers(case(*rows), found).ranks == (0,)
    assert not is_out_of_order(case(*rows), found)


def test_one_operation_from_lines_that_never_met_is_another_order() -> None:
    other = "/job/train.py:20:main"
    rows = [call(r, n, "all_reduce", "float32[8]") for r in (0, 1) for n in (1, 2)]
    rows += [
        call(0, 3, "all_reduce", "float32[1]", place=other),
        call(1, 3, "all_reduce", "float32[8]"),
    ]
    (found,) = told(*rows)
    assert is_out_of_order(case(*rows), found)


def test_a_root_with_a_line_of_its_own_is_in_the_same_broadcast() -> None:
    rows = [
        call(0, 1, "broadcast", "float32[8]", root=0, place="/job/train.py:20:main"),
        call(1, 1, "broadcast", "float32[9]", root=0),
    ]
    (found,) = told(*rows)
    assert found.kind == "size"
    assert not is_out_of_order(case(*rows), found)


def test_no_majority_is_no_minority() -> None:
    assert minority({0: "a", 1: "b"}) == ()
    assert minority({0: "a", 1: "b", 2: "a"}) == (1,)


def test_ranks_are_shown_as_ranges() -> None:
    assert shown([3, 0, 1, 2, 7]) == "0-3,7"


def rank_that_knows(number: int, **groups: list[int]) -> Any:
    listed = tuple(
        GroupSettings(name=str(i), description=name, ranks=tuple(r))
        for i, (name, r) in enumerate(groups.items())
    )
    return SimpleNamespace(rank=number, settings=Settings(groups=listed), captures=())


def test_groups_of_one_name_and_different_members_are_told_apart() -> None:
    ranks = [rank_that_knows(r, mesh_tp=[0, 1] if r < 2 else [2, 3], mesh_dp=[0, 1, 2, 3]) for r in range(4)]
    groups = Groups(SimpleNamespace(ranks=ranks, world_size=4, met=frozenset(range(4))))  # type: ignore[arg-type]
    assert [groups.label(r, "mesh_tp") for r in (0, 3)] == ["mesh_tp[0,1]", "mesh_tp[2,3]"]
    assert groups.members("mesh_tp[2,3]") == {2, 3}
    assert groups.label(1, "mesh_dp") == "mesh_dp"
    assert groups.members("never heard of") == {0, 1, 2, 3}


def transfer(rank: int, direction: str, peer: int, tensor: str, number: int) -> dict[str, Any]:
    row = dict.fromkeys(TRANSFER_COLUMNS)
    known = {
        "rank": rank,
        "op": "send" if direction == "to" else "recv",
        "direction": direction,
        "peer": peer,
    }
    return {**row, **known, "tag": 0, "call": number, "tensor": tensor, "step": number, "begin_s": number}


def recorded(rank: int, seq: int, elements: int) -> dict[str, Any]:
    row = {
        "rank": rank,
        "group": "default_pg",
        "seq": seq,
        "op": "all_reduce",
        "place": place("/job/train.py", 10, "f"),
    }
    return {**dict.fromkeys(CALL_COLUMNS), **row, "input_sizes": [[elements]], "input_dtypes": ["float32"]}


@pytest.mark.parametrize(("own", "is_other_call"), [(4, True), (5, False)])
def test_a_recorder_with_lines_tells_another_call_of_a_loop_from_other_arguments(
    own: int, is_other_call: bool
) -> None:
    """Both ranks have issued both sizes from this line before, or one of them never did."""
    rows = [recorded(rank, seq, size) for rank in (0, 1) for seq, size in ((1, 4), (2, 8))]
    rows += [recorded(0, 3, own), recorded(1, 3, 8)]
    asked = {
        r: CallArguments(rank=r, op="all_reduce", place=None, what="", key=(r,), source="fr.json")
        for r in (0, 1)
    }
    one = Disagreement(group="default_pg", call=3, kind="size", asked=asked, recorded=True)
    some = case_of(cell(), calls=table(rows, columns=CALL_COLUMNS))
    assert is_out_of_order(some, one) is is_other_call


def test_a_rank_waits_for_a_peer_whose_call_has_another_size() -> None:
    rows = [recorded(0, 3, 8), recorded(1, 3, 8), recorded(2, 3, 9)]
    found = PendingCall(
        group="default_pg", seq=3, waiting=(0, 1, 2), started=(), completed=(), missing=(), outliers=(2,), unseen=(),
        calls=table(rows, columns=CALL_COLUMNS),
    )  # fmt: skip
    assert [found.at_odds_with(rank) for rank in (0, 1, 2)] == [(2,), (2,), (0, 1)]


def test_what_most_do_is_counted_by_those_for_whom_ranks_stand() -> None:
    keys = {0: "a", 1: "b", 2: "b"}
    assert minority(keys) == (0,)
    weight = {0: 9_998.0, 1: 1.0, 2: 1.0}.__getitem__
    assert minority(keys, weight) == (1, 2)
    assert outlier_ranks(keys, weight) == (1, 2)
    assert outlier_ranks({0: "a", 1: "b"}, weight) == (1,)


def test_the_sender_whose_last_message_is_another_than_before_is_named() -> None:
    rows = [transfer(0, "to", 1, "float32[8]", n) for n in (1, 2)] + [transfer(0, "to", 1, "float32[9]", 3)]
    rows += [transfer(1, "from", 0, "float32[8]", n) for n in (1, 2, 3)]
    shuffled: Any = SimpleNamespace(
        transfers=table(rows[::-1], columns=TRANSFER_COLUMNS).sort_values("begin_s")
    )
    assert len(calls_of(shuffled)) == 6
    (found,) = misfits(shuffled)
    assert (found.number, found.guilty, found.is_open) == (3, 0, True)


def test_who_left_a_ring_is_guilty_and_not_the_neighbours_that_wait_for_it() -> None:
    """Rank 1 receives from it, rank 3 sends to it, and rank 2 waits for rank 3: 1 and 3 do different things."""
    waiting = {
        1: pending(1, 0, "from", "rank 0 sent 0 messages to rank 1"),
        2: pending(2, 3, "to", "rank 3 received 0 messages from rank 2"),
        3: pending(3, 0, "to", "rank 0 received 0 messages from rank 3"),
    }
    some: Any = SimpleNamespace(
        transfers=table([], TRANSFER_COLUMNS),
        thread_states={0: SimpleNamespace(doing="collective")},
    )
    found = message_outliers(some, waiting)
    assert found.ranks == (0,)
    assert found.criterion == Criterion.GONE_ON


def stage(rank: int, steps: list[str]) -> list[dict[str, Any]]:
    """A pipeline's rank between its neighbours: `>` sends on, `<` receives what comes back, step by step."""
    rows = [
        transfer(rank, "to" if sign == ">" else "from", 1 - rank, "float32[8]", 1)
        | {"step": n, "begin_s": 100 * n + k, "place": f"/u/p.py:{1 if sign == '>' else 2}:run", "end_s": 1.0}
        for n, signs in enumerate(steps)
        for k, sign in enumerate(signs)
    ]
    rows[-1]["end_s"] = None
    return rows


def test_who_sends_less_than_in_any_step_before_and_goes_on_is_guilty() -> None:
    rows = stage(0, [*[">><><<"] * 5, ">><<"]) + stage(1, [*["<<><>>"] * 5, "<<><"])
    some: Any = SimpleNamespace(
        transfers=table(rows, columns=TRANSFER_COLUMNS).sort_values("begin_s"),
        thread_states={r: SimpleNamespace(doing="transfer") for r in (0, 1)},
    )
    waiting = {
        0: replace(pending(0, 1, "from", "none sent"), place=place("/u/p.py", 2, "run")),
        1: replace(pending(1, 0, "from", "none sent"), place=place("/u/p.py", 4, "run")),
    }
    found = message_outliers(some, waiting)
    assert found.ranks == (0,) and found.criterion == Criterion.UNUSUAL_COUNT


def test_a_line_that_was_left_with_fewer_messages_than_ever_before_is_told() -> None:
    rows = stage(0, [*[">>><<<"] * 3, ">><"]) + stage(1, [*["<<<>>>"] * 3, "<<"])
    some: Any = SimpleNamespace(
        transfers=table(rows, columns=TRANSFER_COLUMNS).sort_values("begin_s"),
        thread_states={r: SimpleNamespace(doing="transfer") for r in (0, 1)},
    )
    assert left_short(some, 0)
    # Where it stands the rest may yet come.
    assert not left_short(some, 1)


@pytest.mark.parametrize(
    ("then", "alone"),
    [
        ("all", [0, 1]),
        # What came after was another creation: nothing says that theirs was one too many.
        ("0,2", []),
    ],
)
def test_a_group_that_its_members_alone_made_is_known_by_what_they_made_next(
    then: str, alone: list[int]
) -> None:
    def creation(rank: int, ranks: str, line: int) -> dict[str, Any]:
        return {"rank": rank, "ranks": ranks, "place": f"/u/p.py:{line}:run"}

    same = table([creation(0, "0,1", 4), creation(1, "0,1", 4), creation(2, "all", 9)])
    after = table([creation(0, then, 9), creation(1, then, 9)])
    assert _by_members_alone(same, after)["rank"].tolist() == alone


def test_two_that_send_to_each_other_first_are_both_guilty() -> None:
    """A first step: who has a message too many, and who a receive too few, nobody can tell."""
    rows = stage(0, [">>"]) + stage(1, ["<>"])
    some: Any = SimpleNamespace(
        cell=cell(),
        transfers=table(rows, columns=TRANSFER_COLUMNS).sort_values("begin_s"),
        thread_states={r: SimpleNamespace(doing="transfer") for r in (0, 1)},
    )
    waiting = {0: pending(0, 1, "to", "1 received 1"), 1: pending(1, 0, "to", "0 received 0")}
    waiting[0] = replace(waiting[0], place=place("/u/p.py", 1, "run"))
    waiting[1] = replace(waiting[1], place=place("/u/p.py", 2, "run"))
    assert message_outliers(some, waiting).ranks == (0, 1)
