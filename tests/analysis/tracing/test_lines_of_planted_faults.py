"""A fault planted in the analysis is found by `nsadiag analyze --why-not` alone: it names the function and the line."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents.imports import ROOT
from support.recordings.golden import GOLDEN, unpack

from nsadiag.analysis.rules.registry import RULES
from nsadiag.commands.explain.document import explain, why_not
from nsadiag.commands.explain.text import MOST_LINES, text_of

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
        "courses[r].last < seq",
        "courses[r].last > seq",
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
        "if inside else []",
        "if not inside else []",
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
    said = said_with(file, is_, planted, name, cls, tmp_path)
    near = lines_around(tmp_path / file, (ROOT / file).read_text().split(is_)[0].count("\n") + 1)
    assert any(f"({file}:{line})" in said for line in near), said


def said_with(file: str, is_: str, planted: str, name: str, cls: str, folder: Path) -> str:
    """What --why-not prints of a recording, of a copy of the package with the fault in it."""
    shutil.copytree(
        ROOT / "nsadiag", folder / "nsadiag"
    )  # and what is compiled: that of the other files still holds
    text = (folder / file).read_text()
    assert text.count(is_) == 1
    (folder / file).write_text(text.replace(is_, planted))
    unpack(GOLDEN / f"{name}.tar.xz", folder / "run")
    asked = [sys.executable, "-m", "nsadiag", "analyze", "run", "--why-not", cls]
    return subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ["healthy_ddp", "missing_rank_throttled", "silently_wrong_max_on_one_rank"])
def test_every_rule_is_said_with_the_line_of_its_file_that_decided(name: str, tmp_path: Path) -> None:
    rows = explain([unpack(GOLDEN / f"{name}.tar.xz", tmp_path / name).path])["rules"]
    assert [row["rule"] for row in rows] == [rule.name for rule in RULES if rule.about == "ranks"]
    for row in rows:
        lines = [row.get("line"), *(declined["line"] for declined in row["declined"])]
        assert row["file"].startswith(RULE_FILES) and (ROOT / row["file"]).is_file()
        # Rules that differ only in the kind of candidate that they take share their function.
        assert any(line and line.startswith(RULE_FILES) for line in lines), row


def test_what_a_rule_was_told_is_said_with_the_lines_that_returned_it(tmp_path: Path) -> None:
    run = unpack(GOLDEN / "missing_rank_throttled.tar.xz", tmp_path / "run").path
    document = why_not([run], "rank_killed")
    *own, winner = document["rules"]
    assert {row["result"] for row in own} == {"declined"} and winner["result"] == "concluded"
    for answer in [answer for row in document["rules"] for answer in row["told"]]:
        file, _, line = answer["line"].partition(":")
        assert (ROOT / file).read_text().splitlines()[int(line) - 1].strip()
        assert f"  {answer['function'][:50]}" in text_of(document, everything=True)
    assert {"is_still", "was_alive"} <= {answer["function"] for answer in winner["told"]}


# Faults of a table or of what is read out of the source: what is printed near them.
DEEP_FAULTS = {
    "a read of a socket is taken for one of a file": (
        "nsadiag/evidence/blocking.py",
        'frames="ssl|socket", state="socket"',
        'frames="ssl|socket", state="io"',
        ("external_wait_silent_server", "external_wait"),
        "state='io'",
    ),
    "an attribute is taken to be the same on all ranks": (
        "nsadiag/source/provenance.py",
        "return keys[0] in assumed if keys else is_uniform(node.attr)",
        "return True",
        ("data_divergent_patience", "data_divergent_control_flow"),
        "`if stopper.stop`",
    ),
    "a message of torch is taken for the loss of a peer": (
        "nsadiag/analysis/facts/exceptions.py",
        'r"connection (closed|reset|refused)',
        'r"expects each|connection (closed|reset|refused)',
        ("rank_exception_bad_batch", "rank_exception"),
        "words: 'expects each'",
    ),
}


# Faults of a rule's own helpers, and of a rule, each with what is printed beside their line.
IN_RULES = {
    "whatever has no file is taken for one": (
        "nsadiag/analysis/rules/blocked/io_stall.py",
        'if path and state.descriptor and state.descriptor.kind == "file":',
        'if not (path and state.descriptor and state.descriptor.kind == "file"):',
        ("missing_rank_killed_rank", "missing_rank"),
        "if not (path and state.descriptor",
    ),
    "inputs with few elements count as samples": (
        "nsadiag/analysis/rules/correctness/invariants/shared_draws.py",
        "math.prod(shape) > SMALL",
        "math.prod(shape) <= SMALL",
        ("silently_wrong_shared_timesteps", "shared_draws"),
        "return shape[0] if len(shapes) == 1 and shape and (math.prod(shape) <= SMALL)",
    ),
    "a rank with a place is taken for one without": (
        "nsadiag/analysis/rules/exits/missing_files.py",
        "if at is None or",
        "if at is not None or",
        ("rank_exception_unwritten_index", "rank_exception"),
        "if at is not None or",
    ),
    "a rank in a call is taken for one in none": (
        "nsadiag/analysis/rules/blocked/io_stall.py",
        "if what is None or",
        "if what is not None or",
        ("io_stall_shard_read", "io_stall"),
        "if what is not None or",
    ),
}


@pytest.mark.parametrize("fault", IN_RULES)
def test_a_fault_of_a_rule_or_its_helper_is_named_with_its_condition(fault: str, tmp_path: Path) -> None:
    file, is_, planted, (name, asked), beside = IN_RULES[fault]
    said = said_with(file, is_, planted, name, asked, tmp_path)
    line = (ROOT / file).read_text().split(is_)[0].count("\n") + 1
    assert any(beside in each and f"({file}:{line})" in each for each in said.splitlines()), said
    assert len(said.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("fault", DEEP_FAULTS)
def test_a_fault_below_the_rules_is_named_with_the_row_condition_or_words(fault: str, tmp_path: Path) -> None:
    file, is_, planted, (name, cls), beside = DEEP_FAULTS[fault]
    said = said_with(file, is_, planted, name, cls, tmp_path)
    (line,) = [n for n, text in enumerate((ROOT / file).read_text().splitlines(), 1) if is_ in text]
    at = f"{file}:{line}" if "expects each" not in beside else beside
    assert any(at in each and beside in each for each in said.splitlines()), said


def test_only_the_class_asked_about_has_its_facts_in_full(tmp_path: Path) -> None:
    run = unpack(GOLDEN / "rank_conditional_validation.tar.xz", tmp_path / "run").path
    said = text_of(why_not([run], "data_divergent_control_flow"), everything=True)
    assert "(as above)" in said.rpartition("concluded (")[2]


def test_where_there_is_no_candidate_that_is_said_with_the_reason(tmp_path: Path) -> None:
    run = unpack(GOLDEN / "rank_killed_sigkill.tar.xz", tmp_path / "run").path
    said = text_of(why_not([run], "uneven_inputs")).splitlines()
    assert "  none: of 2 ranks none was left waiting for another one" in said
    assert not any("candidates" in line for line in text_of(why_not([run], "network_stall")).splitlines()[:2])
