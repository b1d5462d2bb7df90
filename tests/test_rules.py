"""Rules: found by walking their package, tried in an order that follows from what they declare."""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.class_pages import PAGE, with_classes
from support.golden import GOLDEN, unpack
from typer.testing import CliRunner

from nsadiag.analysis.classes import CLASSES
from nsadiag.analysis.rules.registry import RULES, discover, in_causal_order
from nsadiag.analysis.rules.rule import CAUSES
from nsadiag.cli.main import app
from nsadiag.commands.explain import explain, text_of, why_not
from nsadiag.errors import UsageError

ORDER = [rule.name for rule in RULES]
BY_NAME = {rule.name: rule for rule in RULES}


def test_rules_are_found_alike_each_time() -> None:
    assert discover() == discover()
    assert [rule.name for rule in discover()] == sorted(ORDER)


def test_the_order_does_not_depend_on_the_order_in_which_rules_are_found() -> None:
    assert in_causal_order(reversed(discover())) == RULES


@pytest.mark.parametrize("name", ORDER)
def test_a_rule_is_tried_after_those_that_explain_it(name: str) -> None:
    rule = BY_NAME[name]
    causes = {*rule.explained_by, *(r.name for r in RULES if r.family in CAUSES[rule.family])}
    assert causes <= set(ORDER[: ORDER.index(name)])


def test_a_circle_of_edges_is_an_error() -> None:
    first, *others = RULES
    circular = dataclasses.replace(first, explained_by=(ORDER[-1],))
    with pytest.raises(graphlib.CycleError):
        in_causal_order([circular, *others])


def test_an_edge_to_a_rule_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no_such_rule"):
        in_causal_order([dataclasses.replace(RULES[0], explained_by=("no_such_rule",))])


def test_every_class_is_concluded_by_a_rule_and_no_rule_concludes_another() -> None:
    assert {cls for rule in RULES for cls in rule.concludes} == set(CLASSES)
    assert {cls for rule in RULES for cls in rule.confused_with} <= set(CLASSES)


@pytest.fixture
def recording(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: unpack(GOLDEN / f"{name}.tar.xz", tmp_path / name).path


def test_why_not_names_the_fact_that_keeps_a_class_away(recording: Callable[[str], Path]) -> None:
    document = why_not(recording("rank_killed_sigkill"), "network_stall")
    assert document["verdict"] == "rank_killed"
    (row,) = [row for row in document["rules"] if row["rule"] == "network_stall"]
    assert row["result"] == "declined"
    assert any("still" in declined["fact"] for declined in row["declined"])


def test_why_not_of_a_class_that_is_outranked_names_the_rule_that_explains_it(
    recording: Callable[[str], Path],
) -> None:
    document = explain(recording("rank_conditional_validation"))
    lost = [row for row in document["rules"] if row["result"] == "outranked"]
    assert {row["by"] for row in lost} == {"rank_conditional_collective"}
    assert "collective_order_mismatch" in {row["class"] for row in lost}


def test_explain_lists_every_rule_in_its_order(recording: Callable[[str], Path]) -> None:
    document = explain(recording("uneven_inputs_shards"))
    assert [row["rule"] for row in document["rules"]] == ORDER
    assert [row["name"] for row in document["explanations"] if row["holds"]] != []
    assert len(text_of(document).splitlines()) > len(ORDER)


def test_nothing_is_written_by_looking_at_the_rules(recording: Callable[[str], Path]) -> None:
    run = recording("uneven_inputs_shards")
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    explain(run)
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_a_class_that_is_not_there_is_a_usage_error_with_the_nearest_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["analyze", str(tmp_path), "--why-not", "network_stal"])
    assert isinstance(done.exception, UsageError)
    assert "network_stall" in done.exception.hint


def test_the_page_of_classes_is_what_the_rules_say() -> None:
    assert with_classes(PAGE.read_text()) == PAGE.read_text(), "run python -m tests.support.class_pages"


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="no generated part"):
        with_classes("# Classes\n")
