"""A fault planted in the analysis is found by `nsadiag analyze --why-not` alone: it names the function and the line."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.golden import GOLDEN, unpack
from test_architecture import ROOT

from nsadiag.analysis.rules.registry import RULES
from nsadiag.commands.explain import explain, text_of, why_not

RULE_FILES = "nsadiag/analysis/rules/"
# File, the line as it is, and as it is planted; a recording whose verdict is another one then, and the class that it should have.
FAULTS = {
    "the first break is one that follows a peer": (
        "nsadiag/analysis/facts/exits.py",
        "if not b.follows_a_peer and (b.kind",
        "if b.follows_a_peer and (b.kind",
        ("rank_exception_bad_batch", "rank_exception"),
    ),
    "ranks that have gone on count as missing": (
        "nsadiag/analysis/relations/pending.py",
        "if issued[r] < seq",
        "if issued[r] > seq",
        ("missing_rank_throttled", "missing_rank"),
    ),
    "recorded steps are compared only if ranks are missing": (
        "nsadiag/analysis/relations/invariants/operations.py",
        "if not ran_together(case.cell):",
        "if ran_together(case.cell):",
        ("silently_wrong_max_on_one_rank", "silently_wrong"),
    ),
    "a rank is taken to be in the loop that it left": (
        "nsadiag/analysis/explain/candidates/loop_exit.py",
        "if not inside:",
        "if inside:",
        ("uneven_inputs_last_rank", "uneven_inputs"),
    ),
}


def lines_around(path: Path, line: int) -> range:
    """The lines of the innermost function that has this one."""
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    spans = [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in functions]
    return max((span for span in spans if line in span), key=lambda span: span.start)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_by_file_and_function(fault: str, tmp_path: Path) -> None:
    file, is_, planted, (name, cls) = FAULTS[fault]
    shutil.copytree(ROOT / "nsadiag", tmp_path / "nsadiag", ignore=shutil.ignore_patterns("__pycache__"))
    text = (tmp_path / file).read_text()
    assert text.count(is_) == 1
    (tmp_path / file).write_text(text.replace(is_, planted))
    unpack(GOLDEN / f"{name}.tar.xz", tmp_path / "run")
    asked = [sys.executable, "-m", "nsadiag", "analyze", "run", "--why-not", cls]
    said = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    near = lines_around(tmp_path / file, text[: text.index(is_)].count("\n") + 1)
    assert any(f"({file}:{line})" in said for line in near), said


@pytest.mark.parametrize("name", ["healthy_ddp", "missing_rank_throttled", "silently_wrong_max_on_one_rank"])
def test_every_rule_is_said_with_the_line_of_its_file_that_decided(name: str, tmp_path: Path) -> None:
    rows = explain(unpack(GOLDEN / f"{name}.tar.xz", tmp_path / name).path)["rules"]
    assert [row["rule"] for row in rows] == [rule.name for rule in RULES]
    for row in rows:
        lines = [row.get("line"), *(declined["line"] for declined in row["declined"])]
        assert row["file"].startswith(RULE_FILES) and (ROOT / row["file"]).is_file()
        # Rules that differ only in the kind of candidate that they take share their function.
        assert any(line and line.startswith(RULE_FILES) for line in lines), row


def test_what_a_rule_was_told_is_said_with_the_lines_that_returned_it(tmp_path: Path) -> None:
    run = unpack(GOLDEN / "missing_rank_throttled.tar.xz", tmp_path / "run").path
    document = why_not(run, "rank_killed")
    *own, winner = document["rules"]
    assert {row["result"] for row in own} == {"declined"} and winner["result"] == "concluded"
    for answer in [answer for row in document["rules"] for answer in row["told"]]:
        file, _, line = answer["line"].partition(":")
        assert (ROOT / file).read_text().splitlines()[int(line) - 1].strip()
        assert f"{answer['function']}: " in text_of(document)
    assert {"is_still", "was_alive"} <= {answer["function"] for answer in winner["told"]}
