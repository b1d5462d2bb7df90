"""What the first cells of a matrix teach about the later ones, from the jobs to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

from nsadiag.evidence.layout import write_json
from nsadiag.reports import load_report
from nsadiag.reports.formats.registry import REPORTERS
from nsadiag.reports.terminal.live import Tally

# Memory, since it is the same on a busy machine: how long a cell takes is not.
CELL = """
import sys
size, kind = int(sys.argv[1]), sys.argv[2]
held = b"x" * ((24 * size + (600 if (size, kind) == (5, "b") else 0)) << 20)
"""
SPEC = """
name: growing
command: cell.py
probes: light
stall_after_s: 60
axes:
  size: {values: [8, 5, 3, 2, 1], args: "{value}"}
  kind: {values: [a, b], args: "{value}"}
"""
SUDDEN = "size=5,kind=b"


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix whose cells need more memory the larger they are, and one of them out of all proportion."""
    jobs = Jobs(tmp_path_factory.mktemp("growing"))
    (jobs.directory / "spec.yaml").write_text(SPEC)
    (jobs.directory / "cell.py").write_text(CELL)
    done = jobs.run("matrix", "spec.yaml", "--out", jobs.directory / "matrix")
    jobs.close()
    assert done.returncode == 0, done.stderr
    return jobs.directory / "matrix"


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.slow
def test_small_cells_run_first_whatever_the_order_of_the_spec(matrix: Path) -> None:
    began = {p.parent.name: p.stat().st_mtime_ns for p in matrix.glob("cells/*/watch.json")}
    sizes = [int(name.split(",")[0].removeprefix("size=")) for name in sorted(began, key=lambda n: began[n])]
    assert sizes == sorted(sizes)
    listed = [cell["id"] for cell in read(matrix / "matrix.json")["cells"]]
    assert listed[0] == "size=8,kind=a" and listed[-1] == "size=1,kind=b"


@pytest.mark.slow
def test_later_cells_have_a_predicted_time_in_their_verdict(matrix: Path) -> None:
    told = {}
    for folder in sorted((matrix / "cells").iterdir()):
        run_s = read(folder / "cell.json")["predicted"].get("run_s")
        assert read(folder / "verdict.json")["progress"]["predicted_s"] == (run_s["value"] if run_s else None)
        if run_s:
            told[folder.name] = run_s
            assert run_s["low"] < run_s["value"] < run_s["high"]
    assert told, "nothing was predicted"
    assert not {"size=1,kind=a", "size=1,kind=b"} & set(told), "of the first cells nobody can know"


def test_a_cell_far_off_is_a_finding_of_the_matrix_and_not_a_failure(matrix: Path) -> None:
    offs = read(matrix / "matrix.json")["scaling"]["offs"]
    # On a busy machine any cell may take long; its memory is far off in one alone.
    off = {off["id"]: off for off in offs}
    assert off[SUDDEN]["factor"] > 2
    assert all(other["measure"] == "run_s" for name, other in off.items() if name != SUDDEN)
    assert read(matrix / "cells" / SUDDEN / "verdict.json")["outcome"] == "healthy"


@pytest.mark.parametrize("format_", ["terminal", "md", "html", "json"])
def test_every_report_says_how_the_cost_grows_and_what_is_far_off(matrix: Path, format_: str) -> None:
    text = REPORTERS[format_](load_report(matrix))
    assert SUDDEN in text
    if format_ == "json":
        assert SUDDEN in [off["id"] for off in json.loads(text)["scaling"]["offs"]]
        return
    assert "predicted from the other cells" in " ".join(text.split())
    if format_ == "html":
        assert 'aria-label="peak memory per rank, measured against predicted"' in text


@pytest.mark.parametrize(
    "broken",
    [
        "x", [], {"measures": "x"}, {"measures": {"step_s": {"points": [{"id": 1}, 7]}}}, {"offs": [{}, 1, {"id": "a"}]},
        {"measures": {"step_s": {"points": [{"id": "a", "measured": float("nan"), "predicted": {"value": 1}}]}}},
        {"measures": {"step_s": {"points": [{"id": "a", "measured": 1, "predicted": {"value": 1}}], "jumps": [{}, {"axis": "n"}],
                                 "growth": {"n": {}}}}},
        {"cut_short": [{}, {"id": "b"}]},
    ],
)  # fmt: skip
def test_half_written_figures_are_left_out_of_the_report(tmp_path: Path, broken: object) -> None:
    write_json(
        tmp_path / "matrix.json",
        {"name": "m", "cells": [{"id": "a=1", "factors": {"a": "1"}}], "scaling": broken},
    )
    for name in ("terminal", "md", "html", "json"):
        assert REPORTERS[name](load_report(tmp_path))


def test_the_time_left_is_what_was_foretold_divided_by_the_cells_side_by_side() -> None:
    now = 0.0
    tally = Tally(lambda: now)
    tally.start("m", ["a", "b", "c", "d"])
    tally.running = {"a": 0.0, "b": 0.0}
    now = 10.0
    tally.finish("a", None, 10.0)
    assert tally.eta_s is None
    tally.finish("b", None, 10.0)
    assert tally.eta_s == pytest.approx(10.0), "two at a time, as long as the others took on average"
    tally.predicted = {"c": 40.0, "d": 60.0}
    assert tally.eta_s == pytest.approx(50.0)
    tally.running = {"c": 10.0}
    now = 30.0
    assert tally.time_of("c") == "20 s of about 40 s"
    # In 30 s there were 20 s of cells that ended: one at a time.
    assert tally.eta_s == pytest.approx(80.0)
