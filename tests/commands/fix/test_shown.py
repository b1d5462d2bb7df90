"""A patch as it is shown: on the terminal, as Markdown with a suggestion, as a document, and in the reports of its run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.processes.failed_run import TEXT, Failed

from nsadiag.commands.agents import tools
from nsadiag.commands.fix import shown
from nsadiag.commands.fix.fix import Candidate, Fixed, Tried
from nsadiag.commands.fix.origin import read_origin
from nsadiag.errors import UsageError
from nsadiag.evidence.rehearsal.repair import Shown
from nsadiag.repair.change import Change
from nsadiag.repair.judgement import Judgement

COST = "left out: 5 of 57 rounds on rank 0"


def candidate(what: str, loader: str) -> Candidate:
    after = TEXT.replace("loader", loader)
    return Candidate(what=what, change=Change.of({"train.py": TEXT}, {"train.py": after}), template="loops")


@pytest.fixture
def fixed(tmp_path: Path) -> Fixed:
    rows = (
        Shown(criterion="files", met=True, because="1 file"),
        Shown(criterion="steps", met=True, because=COST),
    )
    refused = (Shown(criterion="steps", met=False, because="rank 0 makes 3 steps"),)
    return Fixed(
        origin=read_origin(Failed(tmp_path).write()),
        tried=[
            Tried(
                candidate=candidate("wrong", "loader[:3]"), judgement=Judgement(level="agrees", rows=refused)
            ),
            Tried(
                candidate=candidate("drop", "even(loader)"),
                judgement=Judgement(level="fixed", rows=rows, cost=COST, loses=True),
            ),
        ],
        untried=[candidate("repeat", "padded(loader)")],
        seconds=12.3,
    )


def test_the_terminal_has_the_cost_the_diff_the_proof_and_the_alternatives(fixed: Fixed) -> None:
    said = list(shown.lines(fixed))
    assert said[0] == f"fixed, at a cost: drop; {COST}"
    assert "+for batch in even(loader):" in said
    assert f"  shown      steps: {COST}" in said
    assert "  tried  wrong: agrees; steps: rank 0 makes 3 steps" in said
    assert "  not tried  repeat" in said


def test_a_pull_request_has_a_suggestion_of_the_lines_that_change(fixed: Fixed) -> None:
    said = list(shown.markdown(fixed))
    assert said[0] == f"**fixed, at a cost**: drop; {COST}"
    assert "| steps | yes | left out: 5 of 57 rounds on rank 0 |" in said
    at = said.index("```suggestion")
    assert said[at - 2 : at + 3] == [
        "`train.py`, lines 2 to 2:",
        "",
        "```suggestion",
        "for batch in even(loader):",
        "```",
    ]


def test_the_reports_and_the_tool_of_agents_show_what_was_found(fixed: Fixed) -> None:
    run = fixed.origin.directory
    with pytest.raises(UsageError, match=r"has no fix\.json"):
        tools.patch(str(run))
    shown.keep(fixed)
    for report in ("report.md", "report.html"):
        assert "for batch in even(loader):" in (run / report).read_text()
    document = json.loads(tools.patch(str(run)))
    assert (document["result"], document["cost"]) == ("fixed", COST)
    assert [other["what"] for other in document["others"]] == ["wrong", "repeat"]
    assert "+for batch in even(loader):" in document["diff"]
