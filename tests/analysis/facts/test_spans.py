"""Begins and ends of a rank's recording are paired by one rule, for the agent and for what rules read."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from nsadiag.analysis.facts.spans import spans_of
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.evidence.ring.reader import Recording, read_blackbox

BEGIN, END, POINT = Phase.BEGIN, Phase.END, Phase.POINT
Row = tuple[Kind, Phase, str, int]


def recorded(path: Path, rows: Iterable[Row], capacity: int = 64) -> Recording:
    box = BlackBox(path / "blackbox.bin", rank=3, world_size=4, capacity=capacity)
    for kind, phase, name, number in rows:
        box.emit(kind, phase, box.names(name), number, 8, box.names("group\ttrain.py:7:main\tfloat32[8]"))
    return read_blackbox(path / "blackbox.bin")


def spans(recording: Recording, *kinds: Kind) -> list[tuple[str, int, bool]]:
    """Name, number, and whether it is over."""
    found = spans_of(3, recording, float, *(kinds or Kind))
    return [(span.name, span.number, span.end_s is not None) for span in found]


def test_a_span_says_who_did_what_from_when_to_when(tmp_path: Path) -> None:
    recording = recorded(
        tmp_path, [(Kind.COLLECTIVE, BEGIN, "all_reduce", 5), (Kind.COLLECTIVE, END, "all_reduce", 5)]
    )
    (span,) = spans_of(3, recording, lambda t_ns: t_ns / 1e9, Kind.COLLECTIVE)
    assert (span.rank, span.kind, span.name, span.number) == (3, Kind.COLLECTIVE, "all_reduce", 5)
    assert (span.group, span.place, span.detail) == ("group", "train.py:7:main", "float32[8]")
    assert span.thread == recording.pid
    assert [span.begin_s, span.end_s] == [t_ns / 1e9 for t_ns in recording.events["t_ns"]]


def test_an_end_closes_the_innermost_begin_of_its_name(tmp_path: Path) -> None:
    rows = [
        (Kind.MODULE, BEGIN, "block", 0), (Kind.MODULE, BEGIN, "layer", 0), (Kind.MODULE, BEGIN, "block", 1),
        (Kind.MODULE, END, "block", 9),
    ]  # fmt: skip
    recording = recorded(tmp_path, rows)
    assert spans(recording) == [("block", 0, False), ("layer", 0, False), ("block", 1, True)]
    assert [event.name for event in recording.open_spans] == ["layer", "block"]


def test_a_point_and_an_end_without_its_begin_are_no_spans(tmp_path: Path) -> None:
    rows = [(Kind.DATA, END, "Dataset", 0), (Kind.STEP, POINT, "", 1), (Kind.DATA, BEGIN, "Dataset", 0)]
    assert spans(recorded(tmp_path, rows)) == [("Dataset", 0, False)]


@pytest.mark.parametrize("kind", [Kind.COLLECTIVE, Kind.PROCESS_GROUP])
def test_the_end_of_one_call_does_not_close_another(tmp_path: Path, kind: Kind) -> None:
    recording = recorded(tmp_path, [(kind, BEGIN, "barrier", 4), (kind, END, "barrier", 6)])
    assert spans(recording) == [("barrier", 4, False)]
    assert [event.a for event in recording.open_spans] == [4]


def test_a_ring_that_has_wrapped_keeps_what_it_still_has_whole(tmp_path: Path) -> None:
    rows = [(Kind.COLLECTIVE, phase, "barrier", n) for n in range(1, 6) for phase in (BEGIN, END)]
    recording = recorded(tmp_path, [*rows, (Kind.COLLECTIVE, BEGIN, "barrier", 6)], capacity=4)
    assert spans(recording) == [("barrier", 5, True), ("barrier", 6, False)]


def test_kinds_that_were_not_asked_for_are_left_out(tmp_path: Path) -> None:
    rows = [(Kind.FORWARD, BEGIN, "Net", 0), (Kind.COLLECTIVE, BEGIN, "barrier", 1)]
    assert spans(recorded(tmp_path, rows), Kind.COLLECTIVE) == [("barrier", 1, False)]
