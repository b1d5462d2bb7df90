"""Commands that only read answer at once: none of them imports the analysis, torch, pandas or numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.console import piped
from support.recordings.golden import GOLDEN, unpack

from nsadiag.analysis.rules import catalogue
from nsadiag.analysis.rules.registry import CLASSES, RULES
from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import write_json

LABEL = 14  # columns before the values
HEAVY = ("torch", "pandas", "numpy", "nsadiag.analysis.case", "nsadiag.commands.run")
PROBE = """
import sys
from nsadiag.cli import main
sys.argv = ["nsadiag", *sys.argv[1:]]
try:
    main()
finally:
    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


def imported_by(*arguments: str, heavy: tuple[str, ...] = HEAVY) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=heavy), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    return done.stderr.strip()


# typer's way to convert values, which takes longer to import than all of ours.
@pytest.mark.parametrize("arguments", [("ls", "."), ("list",), ("explain", "missing_rank")], ids=" ".join)
def test_values_that_need_no_conversion_import_no_pydantic(arguments: tuple[str, ...]) -> None:
    assert imported_by(*arguments, heavy=("pydantic", "typer._adapters")) == "[]"


@pytest.mark.parametrize(
    "arguments", [("list",), ("list", "--faults"), ("--help",), ("run", "--help")], ids=" ".join
)
def test_lists_and_help_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert imported_by(*arguments) == "[]"


# Not html: its pictures are drawn from the evidence.
@pytest.mark.parametrize("kind", ["terminal", "md", "json", "junit"])
def test_a_finished_verdict_is_shown_without_the_analysis(kind: str, tmp_path: Path) -> None:
    run = unpack(GOLDEN / "rank_killed_sigkill.tar.xz", tmp_path)
    write_json(run.verdict, judge_directory(run.path).to_json())
    assert imported_by("report", str(run.path), "--format", kind) == "[]"


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["terminal", "json"])
def test_a_verdict_on_a_terminal_takes_neither_templates_nor_the_shapes_of_evidence(
    judged: Path, options: tuple[str, ...]
) -> None:
    rest = ("jinja2", "nsadiag.reports.scaling", "nsadiag.evidence.documents.training")
    assert imported_by("report", str(judged), *options, heavy=rest) == "[]"


def test_the_catalogue_says_what_the_rules_say() -> None:
    stated = [
        (each.name, each.family, each.explained_by, each.explains, dict(each.means))
        for each in catalogue.entries()
    ]
    assert stated == [
        (rule.name, rule.family, rule.explained_by, rule.explains, dict(rule.means)) for rule in RULES
    ]
    assert catalogue.classes() == CLASSES
    assert all(each.purpose for each in catalogue.entries())


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    run = unpack(GOLDEN / "local_lock_deadlock_dropped_record.tar.xz", tmp_path)
    write_json(run.verdict, judge_directory(run.path).to_json())
    return run.path


def test_into_a_pipe_each_sentence_is_one_line(judged: Path) -> None:
    lines = piped("report", str(judged))
    assert [line for line in lines if line != line.rstrip()] == []
    summary = json.loads((judged / "verdict.json").read_text())["summary"]
    assert f"  {summary}" in lines


def test_columns_break_lines_in_a_pipe_too(judged: Path) -> None:
    lines = piped("report", str(judged), COLUMNS="60")
    # A path is never broken: only a word that does not fit beside its label makes a line longer.
    longer = [line for line in lines if len(line) > 60 and "HUNG" not in line and "  files  " not in line]
    assert [line for line in longer if LABEL + max(map(len, line.split())) <= 60] == []
