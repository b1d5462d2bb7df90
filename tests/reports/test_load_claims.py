"""Every format shows what a matrix says as a whole, and nothing where it says nothing."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nsadiag.evidence.layout import write_json
from nsadiag.reports import load_report, print_report
from nsadiag.reports.formats.registry import REPORTERS
from nsadiag.reports.terminal.screen import Screen

NASTY = "<b>x</b> a|b `tick` \x1b[31mred\x1b[0m \x00"
VERDICT: dict[str, Any] = {
    "schema_version": 1, "outcome": "crashed", "class": "ddp_ready_twice", "confidence": 0.9,
    "summary": "A parameter was ready twice.", "guilty_ranks": [0], "blocked_ranks": [], "world_size": 2,
    "where": None, "peers_at": None, "progress": {}, "evidence": [], "rejected": [], "gaps": [],
    "fix": "Bind it early.", "next": None, "times": {},
}  # fmt: skip
HEALTHY = {**VERDICT, "outcome": "healthy", "class": "healthy", "summary": "It trained.", "fix": None}
AXES = {"depth": ["2", "5"], "tokens": ["64", "128"], "kind": ["nsa", "dense"], "binding": ["early", "late"], "mode": ["one", "ddp"]}  # fmt: skip
BASE = {name: values[0] for name, values in AXES.items()}
HYPOTHESES = [
    {"claim": "a late lambda is the culprit", "source": "us", "status": "confirmed", "because": "binding=late: crashed",
     "confirmed_if": "only b fails", "cells": ["base", "binding=late"]},
    {"claim": "depth is the culprit", "source": "report 002", "status": "refuted", "because": "depth=5: healthy", "cells": ["depth=5"]},
    {"claim": f"torch is {NASTY}", "source": "", "status": "not tested", "because": "one version here", "cells": []},
]  # fmt: skip
ATTRIBUTION = [
    {"class": "ddp_ready_twice", "status": "isolated", "words": "It fails where binding is late.",
     "cells": ["binding=late"], "command": "nsadiag matrix x --strategy all -k 'depth=5 and binding=late'"},
]  # fmt: skip
PARITY = [
    {"cell": "depth=5", "control": "base", "judgement": "same", "steps": 3, "loss": {"difference": 1.5e-8}, "worst": []},
    {"cell": "mode=ddp", "control": "base", "judgement": "differs", "steps": 3, "loss": {"difference": 0.25},
     "worst": [{"parameter": "blocks.0.fc.weight", "difference": 1.5}], "says": "Gradients differ."},
    {"cell": "binding=late", "control": "elsewhere", "judgement": "not_comparable", "why": "its control has not been run"},
    {"cell": "binding=late", "control": "base", "judgement": "not_comparable", "why": "other data", "steps": 0},
]  # fmt: skip


def make(directory: Path, **conclusions: Any) -> Path:
    """A matrix of five cells, of which one crashed and one was not run."""
    directory.mkdir()
    cells = []
    for changed in (
        {},
        {"depth": "5"},
        {"binding": "late"},
        {"mode": "ddp"},
        {"kind": "dense", "tokens": "128"},
    ):
        factors = {**BASE, **changed}
        name = ",".join(f"{n}={v}" for n, v in changed.items()) or "base"
        verdict = None if "kind" in changed else VERDICT if "binding" in changed else HEALTHY
        cell = {"id": name, "factors": factors, "world_size": 2, "state": "done" if verdict else "skipped",
                "wall_s": 1.5 if verdict else None, "verdict": verdict}  # fmt: skip
        cells.append(cell)
    axes = [{"name": name, "values": values, "base": BASE[name]} for name, values in AXES.items()]
    write_json(directory / "matrix.json", {"name": "claims", "axes": axes, "cells": cells, **conclusions})
    write_json(
        directory / "run.json", {"kind": "matrix", "name": "claims", "command": ["nsadiag", "matrix", "x"]}
    )
    return directory


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return make(tmp_path / "m", hypotheses=HYPOTHESES, attribution=ATTRIBUTION, parity=PARITY)


def rendered(directory: Path, name: str) -> str:
    return REPORTERS[name](load_report(directory))


def on_terminal(directory: Path, width: int = 80) -> str:
    stream = io.StringIO()
    print_report(load_report(directory), Screen(file=stream, width=width))
    return stream.getvalue()


def test_the_terminal_ends_with_the_claims_and_their_answers(told: Path) -> None:
    text = on_terminal(told)
    assert re.search(r"✓ confirmed +a late lambda is the culprit \(us\)\n +binding=late: crashed", text)
    assert "✗ refuted" in text and "- not tested" in text
    assert text.index("ddp_ready_twice") < text.index("depends on: It fails where") < text.index("Claims")
    assert "nsadiag matrix x --strategy all -k 'depth=5 and binding=late'\n" in text, "to copy, on one line"
    assert "mode=ddp: Gradients differ." in text
    assert "\x1b[31m" not in text and max(map(len, text.splitlines()[:30])) <= 80


def test_markdown_begins_with_the_claims(told: Path) -> None:
    text = rendered(told, "md")
    assert "3 claims: 1 confirmed, 1 refuted, 1 not tested." in text
    assert text.index("Claims tested") < text.index("What failed") < text.index("## Verdicts")
    assert re.search(r"\| ✗ refuted +\| depth is the culprit \(report 002\) +\| depth=5: healthy", text)
    assert "Depends on: It fails where binding is late." in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| differs" in line]
    assert len(rows) == 1 and "`blocks.0.fc.weight (1.5)`" in rows[0] and "0.25" in rows[0]
    assert "elsewhere" not in text, "what was not compared is in matrix.json"
    assert re.search(r"\| not comparable \|.*\| other data +\|", text), "what was refused is said"
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_html_links_each_answer_to_the_cells_behind_it(told: Path) -> None:
    html = rendered(told, "html")
    assert html.index("Claims tested") < html.index("<h2>Findings") < html.index("<h2>Verdicts")
    targets = re.findall(r'href="#(cell-[^"]+)"', html)
    assert {"cell-base", "cell-binding=late"} <= set(targets)
    assert all(f'id="{target}"' in html for target in targets)
    assert "<b>x</b>" not in html and "\x00" not in html and "&lt;b&gt;x" in html
    assert "Depends on" in html and "Gradients differ." in html


def test_json_has_the_documents_as_they_are(told: Path) -> None:
    document = json.loads(rendered(told, "json"))
    assert document["attribution"] == ATTRIBUTION and len(document["parity"]) == 4
    assert [h["status"] for h in document["hypotheses"]] == ["confirmed", "refuted", "not tested"]


def test_junit_fails_what_failed_and_skips_what_was_not_tried(told: Path) -> None:
    root = ElementTree.fromstring(rendered(told, "junit"))
    cells, claims = root.findall("testsuite")
    assert cells.attrib | {"name": ""} == {
        "name": "",
        "tests": "5",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    assert [c.get("name") for c in cells if c.find("failure") is not None] == ["binding=late"]
    assert cells.find("testcase/skipped").get("message") == "it needs GPUs that are not here"  # type: ignore[union-attr]
    assert claims.get("tests") == "3" and claims.get("skipped") == "1" and claims.get("failures") == "0"


def test_junit_of_a_run_is_one_case(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"kind": "run", "name": "train"})
    write_json(tmp_path / "verdict.json", VERDICT)
    (case,) = ElementTree.fromstring(rendered(tmp_path, "junit")).iter("testcase")
    assert case.find("failure").get("type") == "ddp_ready_twice"  # type: ignore[union-attr]
    (tmp_path / "verdict.json").unlink()
    (case,) = ElementTree.fromstring(rendered(tmp_path, "junit")).iter("testcase")
    assert case.find("error") is not None


@pytest.mark.parametrize("name", ["md", "html", "json", "terminal"])
def test_what_is_absent_is_no_empty_table(tmp_path: Path, name: str) -> None:
    # A cell's verdict has hypotheses of its own, here none.
    text = rendered(make(tmp_path / "m"), name).replace('"hypotheses": []', "")
    for word in ("claim", "Claims", "Depends on", "hypotheses", "attribution", "compute the same"):
        assert word not in text.replace("claims", ""), word


def test_a_grid_of_many_axes_names_what_differs_from_the_base(told: Path) -> None:
    text = rendered(told, "md")
    grid = text[text.index("## Verdicts") : text.index("## Findings")]
    assert "what differs from the base" in grid and "nothing: the base" in grid
    assert "tokens=128, kind=dense" in grid and "C crashed" in grid
    assert re.search(r"^  cell +verdict", on_terminal(told), re.M), "and so does the list of costs"
    assert "Step time by" not in rendered(told, "html"), "which no line could join"


@pytest.mark.parametrize(
    "broken",
    [
        {"hypotheses": "x"}, {"hypotheses": [{}]}, {"hypotheses": [1, None]}, {"attribution": [{"cells": 3}]},
        {"parity": {"a": 1}}, {"parity": [{"steps": "x"}]}, {"parity": [{"steps": 1, "worst": 3, "loss": []}]},
    ],
)  # fmt: skip
def test_a_half_written_conclusion_is_still_a_report(tmp_path: Path, broken: dict[str, Any]) -> None:
    directory = make(tmp_path / "m", **broken)
    for name in ("terminal", "md", "html", "json", "junit"):
        assert rendered(directory, name)
