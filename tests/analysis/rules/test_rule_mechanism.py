"""A verdict names its mechanism, the rule that concluded it, wherever a class has several."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.documents.pages import FOLDER
from support.promises import promises
from support.recordings.golden import GOLDEN, missed, unpack

from nsadiag.analysis.rules.registry import RULES
from nsadiag.analysis.verdict import judge_directory
from nsadiag.commands.faults import find_fault
from nsadiag.evidence.records import Verdict
from nsadiag.reports import load_report
from nsadiag.reports.formats.registry import REPORTERS
from nsadiag.reports.model import RunReport

NAME = "silently_wrong_shared_timesteps"
SILENT = [rule.name for rule in RULES if "silently_wrong" in rule.concludes]


@pytest.fixture
def report(tmp_path: Path) -> RunReport:
    run = unpack(GOLDEN / f"{NAME}.tar.xz", tmp_path / NAME).path
    judge_directory(run)
    found = load_report(run)
    assert isinstance(found, RunReport)
    return found


def test_a_verdict_names_the_rule_that_concluded_it(report: RunReport) -> None:
    assert report.verdict and report.verdict.mechanism == "shared_draws"
    assert Verdict.from_json(report.verdict.to_json()) == report.verdict


@pytest.mark.parametrize("format_", ["terminal", "md", "html", "json"])
def test_every_format_shows_the_mechanism_of_a_class_that_has_many(format_: str, report: RunReport) -> None:
    assert "shared_draws" in REPORTERS[format_](report)


def test_a_mechanism_that_is_called_like_its_class_is_not_shown_twice(tmp_path: Path) -> None:
    run = unpack(GOLDEN / "rank_killed_sigkill.tar.xz", tmp_path / "run").path
    assert judge_directory(run).mechanism == "rank_killed"
    assert "\n  mechanism" not in REPORTERS["terminal"](load_report(run))


def test_the_verdict_of_an_older_version_has_no_mechanism(report: RunReport) -> None:
    assert report.verdict
    document = report.verdict.to_json()
    del document["mechanism"]
    assert Verdict.from_json(document).mechanism is None


def test_a_script_promises_the_mechanism_of_a_silent_error(report: RunReport) -> None:
    promised = [p for p in promises() if "silently_wrong" in p.classes]
    assert promised and {p.mechanism for p in promised} <= set(SILENT)
    (own,) = [p for p in promised if p.name == NAME]
    assert report.verdict
    verdict = report.verdict.to_json() | {"mechanism": "replica_drift"}
    assert missed(own, verdict) == ["mechanism replica_drift"]


def test_a_demo_is_found_by_its_mechanism() -> None:
    assert find_fault("shared_draws").name == NAME


@pytest.mark.parametrize("rule", SILENT)
def test_the_page_of_silent_errors_has_a_section_for_each_mechanism(rule: str) -> None:
    assert f"\n### `{rule}`\n" in (FOLDER / "silently_wrong.md").read_text()
