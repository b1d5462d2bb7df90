"""The flight recorder of a rehearsal: collectives by group and number, and which of them are not over."""

from __future__ import annotations

from typing import Any

from nsadiag.agent.rehearsal.call_recorder import MOST_CALLS, CallRecorder
from nsadiag.evidence import recorder
from nsadiag.evidence.rehearsal.calls import CREATION, SEND, Call


def call(number: int, op: str = "all_reduce", **more: Any) -> Call:
    about: dict[str, Any] = {"group": "0", "members": (0, 1), "description": "default_pg"}
    return Call(rank=0, number=number, op=op, tensors=((6, "float32"),), **{**about, **more})


def entries(kept: CallRecorder) -> list[tuple[str, int, str]]:
    found = kept.dump(0)["entries"]
    return [(e["process_group"][1], e["collective_seq_id"], e["profiling_name"]) for e in found]


def test_collectives_are_numbered_within_their_group_as_a_backend_does() -> None:
    kept = CallRecorder()
    kept.announced(call(1, CREATION))
    kept.announced(call(2))
    kept.announced(call(3, group="1", description="mesh_dp"))
    kept.announced(call(4, SEND, peer=1))
    kept.announced(call(5, "broadcast"))
    assert entries(kept) == [
        ("default_pg", 1, "rehearsal:all_reduce"),
        ("mesh_dp", 1, "rehearsal:all_reduce"),
        ("default_pg", 2, "rehearsal:broadcast"),
    ]
    assert kept.dump(0)["pg_config"]["1"]["desc"] == "mesh_dp"


def test_a_call_is_pending_until_it_was_made() -> None:
    kept = CallRecorder()
    first, second = call(1), call(2)
    kept.announced(first)
    kept.announced(second)
    kept.made((first,))
    assert [e["collective_seq_id"] for e in recorder.pending(kept.dump(0))] == [2]


def test_a_call_has_its_size_its_dtype_and_the_line_that_makes_it() -> None:
    kept = CallRecorder()
    kept.announced(call(1, place="/job/train.py:41:step"))
    kept.announced(call(2, place=""))
    named, nameless = kept.dump(0)["entries"]
    assert (named["input_sizes"], named["input_dtypes"]) == ([[6]], ["float32"])
    assert named["frames"] == [{"name": "step", "filename": "/job/train.py", "line": 41}]
    assert nameless["frames"] == []


def test_only_the_newest_calls_of_a_rank_are_kept() -> None:
    kept = CallRecorder()
    for number in range(1, MOST_CALLS + 3):
        kept.announced(call(number))
        kept.made((call(number),))
    assert [seq for _, seq, _ in entries(kept)][:1] == [3]
    assert kept.dump(1)["entries"] == []
