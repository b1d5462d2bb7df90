"""Lanes and the exported timeline show the spans that rules read: an end of another call closes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsadiag.analysis.facts.spans import Span
from nsadiag.evidence.layout import write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.reports import RunReport, load_report
from nsadiag.reports.formats.perfetto import render_perfetto
from nsadiag.reports.pictures.lanes import CALL, _apart
from nsadiag.reports.pictures.view import view_of

BEGIN, END, POINT = Phase.BEGIN, Phase.END, Phase.POINT


@pytest.fixture
def report(tmp_path: Path) -> RunReport:
    """Of a rank whose recording has lost the end of barrier #4 and the begin of barrier #6."""
    rank = tmp_path / "ranks" / "00000"
    rank.mkdir(parents=True)
    box = BlackBox(rank / "blackbox.bin", rank=0, world_size=2)
    at = box.names("\ttrain.py:7:main\tfloat32[8]")
    box.emit(Kind.FORWARD, BEGIN, box.names("Net"))
    box.emit(Kind.FORWARD, END, box.names("Net"))
    box.emit(Kind.COLLECTIVE, BEGIN, box.names("barrier"), 4, 0, at)
    box.emit(Kind.COLLECTIVE, END, box.names("barrier"), 6, 0, at)
    box.emit(Kind.STEP, POINT, 0, 1)
    write_json(tmp_path / "run.json", {"kind": "run", "name": "short"})
    report = load_report(tmp_path)
    assert isinstance(report, RunReport)
    return report


def test_a_lane_leaves_a_call_open_whose_end_was_lost(report: RunReport) -> None:
    found = view_of(report)
    assert found.gaps == () and found.timeline is not None
    (row,) = found.timeline.rows
    assert [(mark.kind, mark.is_open) for mark in row.marks] == [("forward", False), ("call", True)]
    assert row.marks[1].text.startswith("barrier #4, not over") and row.marks[1].text.endswith("train.py:7")


def test_an_exported_timeline_leaves_a_call_open_whose_end_was_lost(report: RunReport) -> None:
    events = json.loads(render_perfetto(report))["traceEvents"]
    shown = [(e["ph"], e["name"], e["cat"]) for e in events if e["ph"] != "M"]
    assert shown == [("X", "Net", "forward"), ("B", "barrier", "collective"), ("i", "step", "step")]
    (barrier,) = (e for e in events if e["ph"] == "B")
    assert barrier["args"] == {"step": 0, "at": "train.py:7:main", "detail": "float32[8]", "still open": True}


def test_a_call_has_the_number_that_the_flight_recorder_gives_it() -> None:
    """DDP calls from C++: the thirty-sixth collective is the first that Python makes."""
    spans = [of_call("barrier", 1, begin_s=10.0, end_s=None, place="train.py:7:main"), *(
        of_call("all_reduce", n, begin_s=n / 10, end_s=n / 10) for n in range(1, 36)
    ), of_call("barrier", 36, begin_s=10.0002, end_s=None)]  # fmt: skip
    shown = [span for span in _apart(spans) if span.name == "barrier"]
    assert [(span.number, span.place) for span in shown] == [(36, "train.py:7:main")]


def test_a_call_that_the_flight_recorder_has_lost_has_no_number() -> None:
    spans = [
        of_call("barrier", 1, begin_s=1.0, end_s=1.1, place="train.py:7:main"),
        of_call("all_reduce", 900, begin_s=50.0, end_s=50.0),
    ]
    assert [span.number for span in _apart(spans)] == [0, 900]


def of_call(name: str, number: int, *, begin_s: float, end_s: float | None, place: str = "") -> Span:
    return Span(rank=0, thread=0, kind=CALL, name=name, group="0", number=number, begin_s=begin_s, end_s=end_s,
                place=place, detail="", step=0, elements=0)  # fmt: skip
