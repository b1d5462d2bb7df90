"""The pictures of a run's page: lanes, waits, source, stacks, records; small at any number of ranks, whatever the evidence holds."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from support.recordings.crowds import DumpSet
from support.recordings.golden import archive_of, unpack
from support.reported import LOCKED, judged, of

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import RunDir, write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.reports.experiments import render_experiment
from nsadiag.reports.formats.html import render_html
from nsadiag.reports.pictures import timeline, view
from nsadiag.reports.pictures.axis import WIDTH, axis_of
from nsadiag.reports.pictures.view import View, view_of
from nsadiag.reports.pictures.waits import CHARACTER, NODE_HEIGHT, NODE_WIDTH

STYLE = Path(view.__file__).parents[1] / "templates" / "style.css"


def seen(name: str, folder: Path) -> View:
    found = view_of(judged(name, folder))
    assert found.gaps == ()
    return found


# -- the axis -----------------------------------------------------------------------------------------


def test_time_runs_from_left_to_right_over_all_bands() -> None:
    axis = axis_of({"start-up": 10.0, "earlier": 12.0, "recent": 12.5, "after": 40.0}, {})
    places = [axis.x(t) for t in (-1, 0, 9.9, 10.1, 11.9, 12.1, 12.4, 13, 39, 40, 1e9)]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0.0, WIDTH)
    assert sum(band.width for band in axis.bands) == pytest.approx(WIDTH)


@pytest.mark.parametrize("moments", [{}, {"start-up": 0.0, "after": 0.0}, {"recent": float("nan")}])
def test_an_axis_without_time_has_no_bands(moments: dict[str, float]) -> None:
    axis = axis_of(moments, {})
    assert axis.bands == ()
    assert axis.x(3.0) in (0.0, WIDTH)


# -- a hang ------------------------------------------------------------------------------------------


def test_a_lane_says_where_its_rank_stands_and_what_is_not_over(tmp_path: Path) -> None:
    found = seen(LOCKED, tmp_path).timeline
    assert found is not None
    by_name = {row.name: row for row in found.rows}
    assert by_name["rank 1"].role == "guilty"
    assert by_name["rank 1"].standing.startswith(f"waiting on a queue, {LOCKED}.py:45")
    assert by_name["rank 0"].standing.startswith("waiting in all_reduce #10")
    assert any(mark.is_open and "all_reduce #10" in mark.text for mark in by_name["rank 0"].marks)
    assert [band.label for band in found.axis.bands] == ["start-up", "work", "no progress"]


def test_the_graph_leads_to_the_culprit_and_to_the_thread_that_could_wake_it(tmp_path: Path) -> None:
    found = seen(LOCKED, tmp_path).waits
    assert found is not None
    assert found.sentences == [
        "rank 0 waits for rank 1: all_reduce #10 of default_pg",
        "rank 1 waits for thread uploader of rank 1: only this thread could wake it",
    ]
    below = {node.title: node.y for node in found.nodes}
    assert below["rank 0"] < below["rank 1"] < below["thread uploader of rank 1"]


def test_a_circle_has_arrows_both_ways(tmp_path: Path) -> None:
    found = seen("rank_conditional_validation", tmp_path).waits
    assert found is not None
    assert sorted(arrow.rail is not None for arrow in found.arrows) == [False, True]


def test_where_stacks_are_all_there_is_the_graph_says_who_is_blocked(tmp_path: Path) -> None:
    found = seen("process_group_mismatch_members_only", tmp_path).waits
    assert found is not None
    assert found.sentences == ["ranks 1-2 wait for rank 0: blocked by it"]


def test_the_branch_is_shown_beside_the_lines_of_both_sides(tmp_path: Path) -> None:
    found = seen("rank_conditional_validation", tmp_path).snippets
    marks = {line.number: line.marks for piece in found for line in piece.lines if line.marks}
    assert marks == {40: ("rank 0",), 62: ("branch",), 65: ("peers",)}


def test_stacks_stand_side_by_side_without_nsadiags_own_frames(tmp_path: Path) -> None:
    sides = seen(LOCKED, tmp_path).sides
    assert [(side.title, side.role) for side in sides] == [("rank 1", "guilty"), ("rank 0", "blocked")]
    files = {frame.file for side in sides for piece in side.pieces for frame in piece.frames}
    assert not [file for file in files if "/nsadiag/worker/" in file]
    assert any(piece.snippet for piece in sides[0].pieces)


def test_a_crash_shows_what_was_raised_and_where(tmp_path: Path) -> None:
    found = seen("rank_exception_bad_batch", tmp_path)
    assert found.sides[0].traceback.startswith("RuntimeError: stack expects each tensor")
    assert found.sides[0].pieces[0].frames[0].function == "collate"
    assert found.waits is None
    assert found.timeline is not None
    # When it was raised, and not when the process had ended.
    assert [(row.standing, row.end) for row in found.timeline.rows] == [
        ("raised RuntimeError", "after 12.2 s"),
        ("raised RuntimeError", "after 11.1 s"),
    ]


def test_a_straggler_shows_in_the_parts_of_a_step_and_in_its_peers_waits(tmp_path: Path) -> None:
    costs = seen("straggler_slow_compute", tmp_path).costs
    parts = {bar.name: dict(bar.parts) for bar in costs.parts}
    assert parts["rank 1"]["compute"] > 5 * parts["rank 0"]["compute"]
    assert parts["rank 0"]["peers"] > 5 * parts["rank 1"]["peers"]
    assert costs.waits[0].name == "rank 1"


@pytest.mark.parametrize("name", ["p2p_mismatch_micro_batches", "healthy_ddp", "slow_compute_log_line_first"])
def test_ranks_that_differ_by_design_have_no_divergence(name: str, tmp_path: Path) -> None:
    found = seen(name, tmp_path).timeline
    assert found is not None and found.divergence == ""


# -- the page can be sent alone ------------------------------------------------------------------------


def test_the_records_that_a_verdict_cites_are_on_the_page(tmp_path: Path) -> None:
    report = judged(LOCKED, tmp_path)
    found = view_of(report).cited
    assert '"collective_seq_id": 10' in found["ranks/00000/captures/02/fr.json#entries[9]"]
    assert "collective_seq_id" in render_html(report)


def test_secrets_in_records_and_logs_are_masked(tmp_path: Path) -> None:
    report = judged(LOCKED, tmp_path)
    token = "ghp_" + "Ab1" * 12
    watch = json.loads((report.directory / "watch.json").read_text())
    watch["looks"][0]["reason"] = f"DB_PASSWORD=letmein1 {token}"
    (report.directory / "watch.json").write_text(json.dumps(watch))
    (report.directory / "ranks" / "00001" / "stdout.log").write_text(f"--api-pass letmein2 {token}\n")
    page = render_html(of(report.directory))
    assert "--api-pass" in page
    assert "letmein" not in page and token not in page


def test_what_lies_outside_the_directory_is_not_shown(tmp_path: Path) -> None:
    report = judged(LOCKED, tmp_path / "run")
    (tmp_path / "outside.txt").write_text("not yours")
    for link in ("ranks/00001/stdout.log", "watch.json"):
        (report.directory / link).unlink(missing_ok=True)
        (report.directory / link).symlink_to(tmp_path / "outside.txt")
    assert "not yours" not in render_html(of(report.directory))


def test_a_picture_that_cannot_be_drawn_is_named_and_the_verdict_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("no time at all")

    report = judged(LOCKED, tmp_path)
    monkeypatch.setattr(view, "timeline_of", broken)
    page = render_html(report)
    assert "timeline could not be shown: ZeroDivisionError: no time at all" in page
    assert "Who waits for whom" in page and "Rank 1 is blocked" in page


@pytest.mark.parametrize("seed", range(8))
def test_damaged_rings_and_documents_leave_a_page(seed: int, tmp_path: Path) -> None:
    report = judged(LOCKED, tmp_path)
    files = sorted(p for p in report.directory.rglob("*") if p.is_file() and p.name != "verdict.json")
    for number, path in enumerate(files):
        raw = bytearray(path.read_bytes())
        for place in range(seed * 7 + number, len(raw), 97 + seed):
            raw[place] ^= 1 << (seed % 8)
        path.write_bytes(raw)
    assert "Rank 1 is blocked" in render_html(of(report.directory))


# -- many ranks, long recordings -----------------------------------------------------------------------


def test_of_many_ranks_each_kind_has_a_lane(tmp_path: Path) -> None:
    crowd = DumpSet(unpack(archive_of(LOCKED), tmp_path / "few"), 0, 200)
    many = RunDir(path=tmp_path / "many")
    many.path.mkdir()
    crowd.write_frame(many)
    for rank in range(200):
        crowd.write_rank(many, rank)
    write_json(many.verdict, judge_directory(many.path).to_json())
    report = of(many.path)
    found = view_of(report)
    assert found.timeline is not None and found.waits is not None
    assert [row.name for row in found.timeline.rows] == ["rank 1", "ranks 0, 2-199 (199)"]
    assert "ranks 0, 2-199 wait for" in found.waits.sentences[0]
    assert len(render_html(report)) < 150_000


def write_ring(rank_dir: Path, rank: int, steps: int) -> None:
    """A recording of many short steps, each with its phases."""
    rank_dir.mkdir(parents=True)
    box = BlackBox(rank_dir / "blackbox.bin", rank=rank, world_size=32)
    for box.step in range(steps):
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER):
            box.emit(kind, Phase.BEGIN, box.names("Net"))
            box.emit(kind, Phase.END, box.names("Net"))
        box.emit(Kind.STEP, Phase.POINT, 0, box.step + 1)


@pytest.mark.slow
def test_long_recordings_of_32_ranks_stay_a_small_page(tmp_path: Path) -> None:
    for rank in range(32):
        write_ring(tmp_path / "ranks" / f"{rank:05d}", rank, 900)
    write_json(tmp_path / "run.json", {"kind": "run", "name": "long"})
    report = of(tmp_path)
    found = view_of(report).timeline
    assert found is not None
    assert len(found.rows) == 32
    assert sum(len(row.marks) for row in found.rows) <= timeline.MOST_MARKS
    assert "start-up" not in [
        band.label for band in found.axis.bands
    ]  # nobody knows when the job was started
    assert len(render_html(report)) < 1_000_000


# -- a bisection ---------------------------------------------------------------------------------------


def bisection(directory: Path, **changes: object) -> Path:
    """A bisection whose first bad point is a recording."""
    report = judged(LOCKED, directory / "points" / "8" / "01")
    assert report.verdict
    good = {"outcome": "healthy", "class": "healthy", "directory": "points/4/01", "summary": ""}
    bad = {
        "outcome": "hung", "class": report.verdict.cls, "directory": "points/8/01", "where": None, "fix": None,
        "summary": report.verdict.summary,
    }  # fmt: skip
    points = [
        {"label": "4", "state": "good", "failures": 0, "step_s": 0.1, "runs": [good], "subject": None},
        {"label": "8", "state": "bad", "failures": 1, "step_s": 0.2, "runs": [bad], "subject": "<b>"},
    ]
    document = {
        "name": "depth", "axis": "layers", "fixed": "", "command": ["train.py"], "conclusion": "threshold",
        "failure": report.verdict.cls, "last_good": "4", "first_bad": "8", "between": [], "slope": None,
        "points_in_all": 8, "points": points, "limit_s": None, "summary": "layers 4 is healthy, 8 hangs.", **changes,
    }  # fmt: skip
    write_json(directory / "run.json", {"kind": "bisect"})
    write_json(directory / "bisect.json", document)
    return directory


def test_a_bisections_page_shows_the_points_and_the_failure_at_the_boundary(tmp_path: Path) -> None:
    page = render_experiment(bisection(tmp_path), "html")
    assert "layers 4 is healthy, 8 hangs." in page
    assert "Who waits for whom" in page and f"{LOCKED}.py:45" in page
    assert 'href="points/8/01/verdict.json"' in page
    assert "8 &lt;b&gt;" in page and "<b>depth" not in page


def test_a_bisections_page_shows_nothing_from_elsewhere(tmp_path: Path) -> None:
    directory = bisection(tmp_path / "bisection")
    document = json.loads((directory / "bisect.json").read_text())
    elsewhere = judged("rank_conditional_validation", tmp_path / "elsewhere").directory
    document["points"][1]["runs"][0]["directory"] = "../elsewhere"
    (directory / "bisect.json").write_text(json.dumps(document))
    assert elsewhere.exists()
    page = render_experiment(directory, "html")
    assert "rank_conditional_validation.py" not in page and "Who waits for whom" not in page


# -- for every eye -------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
def test_text_stands_out_from_its_background(scheme: int) -> None:
    root = re.findall(r":root \{(.*?)\}", STYLE.read_text(), flags=re.DOTALL)[scheme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", root))
    colours = {n: c if len(c) == 7 else "#" + "".join(2 * x for x in c[1:]) for n, c in colours.items()}
    words = ("text", "muted", "link", "hung", "crashed", "slow", "wrong", "healthy", "unknown")
    low = {
        (name, ground): round(contrast(colours[name], colours[ground]), 2)
        for name in words
        for ground in ("bg", "raised")
        if contrast(colours[name], colours[ground]) < 4.5
    }
    assert low == {}


def test_in_a_circle_of_four_no_label_lies_on_another_or_on_a_node(tmp_path: Path) -> None:
    found = seen("p2p_mismatch_left_the_ring", tmp_path).waits
    assert found is not None
    labels = [(arrow, *arrow.label_at) for arrow in found.arrows if arrow.label_at]
    assert [arrow.label for arrow, *_ in labels if arrow.rail] == [
        "barrier #1 of default_pg"
    ]  # once for all three
    boxes = []
    for arrow, x, y in labels:
        width = CHARACTER * len(arrow.label)
        left = x if arrow.rail else x - width / 2
        boxes.append((left, y - 10, left + width, y + 2))
    boxes += [(n.x, n.y, n.x + NODE_WIDTH, n.y + NODE_HEIGHT) for n in found.nodes]
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    assert all(left >= 0 and right <= found.width for left, _, right, _ in boxes)


def test_two_guilty_ranks_that_wait_for_each_other_stand_one_above_the_other(tmp_path: Path) -> None:
    found = seen("p2p_mismatch_both_send_first", tmp_path).waits
    assert found is not None
    assert len({node.y for node in found.nodes}) == 2
    assert len([arrow for arrow in found.arrows if arrow.label_at]) == 2


def test_a_frame_of_a_cited_stack_is_one_line(tmp_path: Path) -> None:
    cited = view_of(judged(LOCKED, tmp_path)).cited["ranks/00001/captures/02/py_spy.json"]
    (line,) = [line for line in cited.splitlines() if '"SampleLogger._upload"' in line]
    assert '"line": 37' in line
