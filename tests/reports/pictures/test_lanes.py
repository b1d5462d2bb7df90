"""Lanes and the exported timeline show the spans that rules read: an end of another call closes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsadiag.evidence.layout import write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.reports import RunReport, load_report
from nsadiag.reports.formats.perfetto import render_perfetto
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
