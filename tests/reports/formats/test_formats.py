"""The formats for other programs: JUnit's XML, a bug report, a timeline, stacks; of recorded runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.verdict import judge_directory
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.reports import load_report
from nsadiag.reports.formats import html, markdown
from nsadiag.reports.formats.registry import REPORTERS

STUCK = "local_lock_deadlock_dropped_record"


COMMAND = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]


def judged(name: str, folder: Path) -> RunDir:
    run = unpack(archive_of(name), folder)
    judge_directory(run.path)
    write_json(run.run, read_json(run.run, {}) | {"command": COMMAND})
    return run


@pytest.fixture
def stuck(tmp_path: Path) -> RunDir:
    return judged(STUCK, tmp_path / STUCK)


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """One cell of each sort: stuck, healthy, not run."""
    names = {"way=a": STUCK, "way=b": "healthy_ddp", "way=c": None}
    folder = tmp_path / "matrix"
    cells = []
    for cell, name in names.items():
        if name:
            judged(name, folder / "cells" / cell)
        state = "done" if name else "pending"
        cells.append(
            {"id": cell, "factors": {"way": cell[-1]}, "state": state, "wall_s": 2.5 if name else None}
        )
    axes = [{"name": "way", "values": ["a", "b", "c"]}]
    write_json(
        folder / "matrix.json", {"name": "ways", "axes": axes, "cells": cells, "totals": {"wall_s": 5.0}}
    )
    write_json(folder / "run.json", {"kind": "matrix", "name": "ways"})
    return folder


def rendered(path: Path, format_: str) -> str:
    return REPORTERS[format_](load_report(path))


def test_junit_has_the_evidence_of_a_failure(stuck: RunDir) -> None:
    (suite,) = ET.fromstring(rendered(stuck.path, "junit").encode())
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "1", "failures": "1", "errors": "0", "skipped": "0",
    }  # fmt: skip
    failure = suite.find("testcase/failure")
    assert failure is not None and failure.get("type") == "local_lock_deadlock"
    assert "py_spy.json" in str(failure.text)


def events(path: Path) -> list[dict[str, Any]]:
    found = json.loads(rendered(path, "perfetto"))["traceEvents"]
    assert isinstance(found, list)
    return found


def test_the_timeline_leaves_open_what_had_not_ended(stuck: RunDir) -> None:
    found = events(stuck.path)
    ranks = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert [name.split(" on ")[0] for name in ranks.values()] == ["rank 0", "rank 1"]
    still_open = {(e["pid"], e["cat"]) for e in found if e["ph"] == "B"}
    verdict = read_json(stuck.verdict)
    (blocked,) = verdict["blocked_ranks"]
    assert (blocked, "backward") in still_open or (blocked, "collective") in still_open
    assert any(e["name"] == "found hung: local_lock_deadlock" for e in found)


def test_slices_of_a_thread_lie_within_each_other(stuck: RunDir) -> None:
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in events(stuck.path):
        if e["ph"] == "X":
            assert e["dur"] >= 0
            slices.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    assert sum(map(len, slices.values())) > 20
    for each in slices.values():
        around: list[float] = []
        for begin, end in sorted(each, key=lambda s: (s[0], -s[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def test_the_stacks_of_all_ranks_share_their_frames(stuck: RunDir) -> None:
    document = json.loads(rendered(stuck.path, "speedscope"))
    frames, (mains, *ranks) = document["shared"]["frames"], document["profiles"]
    assert mains["name"] == "main threads of 2 ranks" and [p["name"] for p in ranks] == ["rank 0", "rank 1"]
    first, second = mains["samples"]
    assert frames[first[0]]["name"] == "MainThread" and first[:2] == second[:2] and first != second
    assert {frames[s[-1]]["name"] for s in mains["samples"]} == {"rank 0", "rank 1"}
    for profile in document["profiles"]:
        assert profile["endValue"] == sum(profile["weights"]) == len(profile["samples"])


def test_a_bug_report_shows_stacks_and_links_to_nothing(stuck: RunDir, matrix: Path) -> None:
    text = rendered(stuck.path, "issue")
    assert "local_lock_deadlock" in text and "#### Where the ranks stood" in text and "](" not in text
    assert "nsadiag run -- torchrun" in text
    of_matrix = rendered(matrix, "issue")
    assert "- `way=a`: hung, local_lock_deadlock\n- `way=b`: healthy\n- `way=c`: pending" in of_matrix


@pytest.mark.parametrize("format_", ["perfetto", "speedscope"])
def test_a_matrix_has_no_single_timeline(matrix: Path, format_: str) -> None:
    with pytest.raises(UsageError) as refused:
        rendered(matrix, format_)
    assert "cells/way=a" in refused.value.hint


def test_a_healthy_matrix_is_no_bug(matrix: Path) -> None:
    verdict = read_json(matrix / "cells/way=b/verdict.json")
    write_json(matrix / "cells/way=a/verdict.json", verdict)
    with pytest.raises(UsageError, match="no finding"):
        rendered(matrix, "issue")


@pytest.mark.parametrize("format_name", ["md", "issue"])
def test_sections_of_markdown_have_headings(stuck: RunDir, format_name: str) -> None:
    text = rendered(stuck.path, format_name)
    titles = [line.lstrip("# ") for line in text.splitlines() if line.startswith("##")]
    assert {"Evidence", "What it is not"} <= {*titles}
    assert "\\#" not in text


PLACE = "/job/train.py:41:step"


def sarif(path: Path) -> list[dict[str, Any]]:
    (run,) = json.loads(rendered(path, "sarif"))["runs"]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {r["ruleId"] for r in run["results"]}
    return list(run["results"])


def test_code_scanning_gets_the_guilty_line_relative_to_the_repository(
    stuck: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = read_json(stuck.verdict)["where"]
    monkeypatch.setenv("GITHUB_WORKSPACE", str(Path(where["file"]).parent))
    (result,) = sarif(stuck.path)
    assert (result["ruleId"], result["level"]) == ("local_lock_deadlock", "error")
    assert where["code"] and result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": Path(where["file"]).name},
        "region": {"startLine": where["line"]},
    }
    assert result["partialFingerprints"]["nsadiagSignature/v1"] == read_json(stuck.verdict)["signature"]


def test_code_scanning_gets_each_finding_of_a_matrix_and_nothing_of_what_is_healthy(
    matrix: Path, tmp_path: Path
) -> None:
    assert [result["ruleId"] for result in sarif(matrix)] == ["local_lock_deadlock"]
    assert sarif(judged("healthy_ddp", tmp_path / "healthy").path) == []


def test_the_cause_of_a_divergence_is_annotated_beside_the_line_at_which_a_rank_stands(stuck: RunDir) -> None:
    at = {"file": "/job/train.py", "line": 12, "function": "load", "code": "if path.exists():"}
    link = {"at": at, "because": "`path.exists()` held on rank 1", "how": "recorded", "ranks": [1]}
    cause = {**at, "how": "recorded", "origin": "file system", "chain": [link]}
    write_json(stuck.verdict, {**read_json(stuck.verdict), "because": cause})
    first = sarif(stuck.path)[0]["relatedLocations"][0]
    assert first["message"]["text"] == "because: `path.exists()` held on rank 1"
    assert first["physicalLocation"]["region"] == {"startLine": 12}
    assert "Because of train.py:12: `path.exists()` held on rank 1." in rendered(stuck.path, "github")


def test_the_calls_of_a_rehearsal_are_in_its_documents(stuck: RunDir) -> None:
    calls = [
        {"rank": n, "number": 3, "op": op, "group": "0", "members": [0, 1], "place": PLACE}
        for n, op in enumerate(("barrier", "all_reduce"))
    ]
    write_json(stuck.rehearsal, {"answer": "differs", "why": "they differ", "matched": 2, "calls": calls})
    related = sarif(stuck.path)[0]["relatedLocations"]
    assert [
        (at["message"]["text"], at["physicalLocation"]["region"]["startLine"]) for at in related[-2:]
    ] == [
        ("rank 0: barrier", 41),
        ("rank 1: all_reduce", 41),
    ]
    document = json.loads(rendered(stuck.path, "json"))["rehearsal"]
    assert (document["answer"], [call["words"] for call in document["calls"]]) == (
        "differs",
        ["barrier", "all_reduce"],
    )


def test_the_page_of_a_run_is_made_of_templates_compiled_before(stuck: RunDir) -> None:
    html._environment.cache_clear()
    markdown._environment.cache_clear()

    def compiled() -> set[str]:
        return {name for made in (html, markdown) for _, name in made._environment().cache or ()}

    html.compile_run_page()
    before = compiled()
    html.render_html(load_report(stuck.path))
    markdown.render_markdown(load_report(stuck.path))
    assert compiled() == before
