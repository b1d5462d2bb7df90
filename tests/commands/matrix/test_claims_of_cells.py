"""A matrix that makes claims: they are settled by the cells it runs, and what it proposes can be pasted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

# Torch's own ranks would cost seconds; a rank is one by its RANK.
CELL = """
import os, sys
flags = sys.argv[1:]
if "--late" in flags and "--deep" in flags:
    raise ValueError("ready twice")
"""
SPEC = """
name: claims
command: cell.py
timeout_s: 60
probes: light
strategy: hypotheses
axes:
  layers: {values: {"2": {}, "5": {args: --deep}}}
  binding: {values: {early: {}, late: {args: --late}}}
  gpus: {values: {none: {}, many: {gpus: 99}}}
include: [{layers: 5, binding: late}]
hypotheses:
  - {claim: depth alone is the cause, vary: {layers: [2, 5]}, confirmed_if: only b fails}
  - {claim: it needs GPUs, vary: {gpus: [none, many]}, confirmed_if: only b fails}
"""


@pytest.fixture
def spec(jobs: Jobs) -> Path:
    (jobs.directory / "cell.py").write_text(CELL)
    (jobs.directory / "spec.yaml").write_text(SPEC)
    return jobs.directory / "out"


def document(out: Path) -> dict[str, Any]:
    return json.loads((out / "matrix.json").read_text())


@pytest.mark.slow
def test_claims_are_settled_and_a_refusal_can_be_lifted_by_pasting_its_command(
    jobs: Jobs, spec: Path
) -> None:
    done = jobs.run("matrix", "spec.yaml", "--out", spec)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    told = document(spec)
    assert {c["id"]: c["state"] for c in told["cells"]} == {
        "base": "done", "gpus=many": "skipped", "layers=5": "done", "layers=5,binding=late": "done",
    }  # fmt: skip
    assert [h["status"] for h in told["hypotheses"]] == ["refuted", "not tested"]
    assert told["hypotheses"][0]["cells"] == ["base", "layers=5"]
    assert "for want of GPUs" in told["hypotheses"][1]["because"]
    (cause,) = told["attribution"]
    assert cause["status"] == "isolated" and cause["rules"] == [{"binding": ["late"]}]
    assert "Tested with layers 5" in cause["words"], "that depth has no part in it was not shown"
    assert "✗ refuted" in done.stdout and cause["command"] in done.stdout

    program, *arguments = shlex.split(cause["command"])
    assert program == "nsadiag"
    jobs.run(*arguments)
    told = document(spec)
    assert [c["id"] for c in told["cells"] if c["state"] == "done"] == [
        "base", "binding=late", "layers=5", "layers=5,binding=late",
    ]  # fmt: skip
    (cause,) = told["attribution"]
    assert cause["rules"] == [{"layers": ["5"], "binding": ["late"]}] and cause["command"] is None
    assert "It fails where layers is 5 and binding is late." in cause["words"]


@pytest.mark.slow
def test_a_matrix_is_judged_again_by_the_evidence_that_is_there(jobs: Jobs, spec: Path) -> None:
    jobs.run("matrix", "spec.yaml", "--out", spec)
    before = document(spec)
    for name in ("verdict.json", "report.md"):
        for path in spec.rglob(name):
            path.unlink()
    (spec / "matrix.csv").unlink()
    kept = before | {"hypotheses": [], "attribution": [], "machine": {"cpus": 12345}}
    (spec / "matrix.json").write_text(json.dumps(kept))

    done = jobs.run("analyze", spec)
    assert done.returncode == 1 and "✗ refuted" in done.stdout, done.stderr
    after = document(spec)
    assert after["machine"] == {"cpus": 12345}, "it ran there, not here"
    for told in (before, after):
        for cell in told["cells"]:
            if cell["verdict"]:
                del cell["verdict"]["times"]["verdict_s"]  # nobody waited for this one
    assert after | {"machine": None} == before | {"machine": None}
    assert (spec / "report.md").exists() and "layers=5,binding=late" in (spec / "matrix.csv").read_text()

    (spec / "run.json").write_text("{}")
    refused = jobs.run("analyze", spec)
    assert refused.returncode == 2 and "spec of a matrix" in refused.stderr


def test_a_dry_run_of_a_covering_array_shows_its_cells(jobs: Jobs, spec: Path) -> None:
    done = jobs.run("matrix", "spec.yaml", "--strategy", "pairwise", "--dry-run", "--json")
    assert 4 <= len(json.loads(done.stdout)) <= 7
    assert (
        len(json.loads(jobs.run("matrix", "spec.yaml", "--strategy", "all", "--dry-run", "--json").stdout))
        == 8
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "pairs"], "--strategy is 'pairs'"),
        (["--strategy", "pairwise", "--strength", "9"], "strength is 9"),
        (["--repeat", "0"], "repeat"),
    ],
)
def test_a_mistake_on_the_line_is_one_line(
    jobs: Jobs, spec: Path, arguments: list[str], message: str
) -> None:
    done = jobs.run("matrix", "spec.yaml", "--dry-run", *arguments)
    assert done.returncode == 2 and message in done.stderr
    assert re.search(r"error: .*\nhint: ", done.stderr)


def test_a_claim_about_no_outcome_is_refused(jobs: Jobs, spec: Path) -> None:
    (jobs.directory / "spec.yaml").write_text(SPEC.replace("only b fails", "only b is hunk", 1))
    done = jobs.run("matrix", "spec.yaml", "--dry-run")
    assert done.returncode == 2 and "no outcome or class is called 'hunk'" in done.stderr
    assert "did you mean 'hung'?" in done.stderr
