"""Rules: found by walking their package, tried in an order that follows from what they declare."""

from __future__ import annotations

import ast
import dataclasses
import graphlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.promises import promises
from support.recordings.golden import GOLDEN, archive_of, unpack
from typer.testing import CliRunner

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.resolve import EXPLAINED, resolve
from nsadiag.analysis.rules.registry import CLASSES, RULES, discover, in_causal_order
from nsadiag.analysis.rules.rule import CAUSES
from nsadiag.analysis.verdict import judge_directory
from nsadiag.cli.main import app
from nsadiag.commands.explain.document import explain, why_not
from nsadiag.commands.explain.text import MOST_LINES, text_of
from nsadiag.errors import UsageError
from nsadiag.evidence.records import Strength

ROOT = Path(__file__).parents[3]
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
    assert set(rule.explains) <= set(ORDER[ORDER.index(name) + 1 :])
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


def test_a_class_is_introduced_by_one_rule_in_a_sentence() -> None:
    introduced = [cls for rule in RULES for cls in rule.means]
    assert len(introduced) == len(set(introduced)) == len(CLASSES)
    assert all(sentence.endswith(".") for sentence in CLASSES.values())


def test_the_contract_has_every_strength() -> None:
    page = (ROOT / "docs" / "contract.md").read_text()
    assert all(f"| {s.name.lower()} | {s.value:g} |" in page for s in Strength)


def numbers_for_confidence(source: str) -> list[int]:
    """Lines that give a confidence or a strength as a number."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg in ("confidence", "strength"):
            constants = (c for c in ast.walk(node.value) if isinstance(c, ast.Constant))
            found += [c.lineno for c in constants if isinstance(c.value, float)]
    return found


def test_only_strengths_say_how_sure_a_verdict_is() -> None:
    folder = ROOT / "nsadiag" / "analysis"
    found = {
        f"{path.relative_to(folder)}:{line}"
        for path in folder.rglob("*.py")
        for line in numbers_for_confidence(path.read_text())
    }
    assert found == set()


def test_a_planted_number_is_found() -> None:
    assert numbers_for_confidence("Draft(strength=0.9 if sure else other)") == [1]


def constant_reasons(source: str) -> list[int]:
    """The lines of each `Declined` whose fact is the same in every run: it has no variable in it."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Declined"
        if not any(isinstance(part, ast.Name) for fact in node.args[:1] for part in ast.walk(fact))
    ]


def test_each_reason_to_decline_says_what_was_seen_in_this_run() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "nsadiag/analysis").rglob("*.py"))
        if (lines := constant_reasons(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_planted_reason_that_never_changes_is_found() -> None:
    source = 'Declined("nothing")\nDeclined(f"{rank} waits", "ends.json")\nDeclined("no " + "rank", source)\n'
    assert constant_reasons(source) == [1, 3]


@pytest.fixture
def recording(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: unpack(GOLDEN / f"{name}.tar.xz", tmp_path / name).path


def test_why_not_names_the_fact_that_keeps_a_class_away(recording: Callable[[str], Path]) -> None:
    document = why_not([recording("rank_killed_sigkill")], "network_stall")
    assert document["verdict"] == "rank_killed"
    (row,) = [row for row in document["rules"] if row["rule"] == "network_stall"]
    assert row["result"] == "declined"
    assert any("still" in declined["fact"] for declined in row["declined"])


def test_why_not_of_a_class_that_is_outranked_names_the_rule_that_explains_it(
    recording: Callable[[str], Path],
) -> None:
    document = explain([recording("rank_conditional_validation")])
    lost = [row for row in document["rules"] if row["result"] == "outranked"]
    assert {row["by"] for row in lost} == {"rank_conditional_collective"}
    assert "collective_order_mismatch" in {row["class"] for row in lost}


def test_every_fact_is_said_with_the_line_of_code_that_found_it(recording: Callable[[str], Path]) -> None:
    document = why_not([recording("rank_killed_sigkill")], "network_stall")
    (row,) = [row for row in document["rules"] if row["rule"] == "network_stall"]
    assert row["file"] == "nsadiag/analysis/rules/blocked/network_stall.py"
    for declined in row["declined"]:
        if declined["line"]:
            file, _, line = declined["line"].split(" > ")[0].rpartition(":")
            assert file == row["file"]
            assert "yield" in (ROOT / file).read_text().splitlines()[int(line) - 1]
    assert any(declined["line"] for declined in row["declined"])


def test_a_conclusion_is_said_with_the_line_of_code_that_drew_it(recording: Callable[[str], Path]) -> None:
    document = explain([recording("rank_killed_sigkill")])
    (row,) = [row for row in document["rules"] if row["result"] == "concluded"]
    assert row["line"].startswith("nsadiag/analysis/rules/exits/rank_killed.py:")
    assert row["line"] in text_of(document)


def with_check(monkeypatch: pytest.MonkeyPatch, check: Callable[[Case], Iterator[Any]]) -> None:
    check.__name__ = "stale_optimizer"
    changed = dataclasses.replace(BY_NAME["stale_optimizer"], check=check)
    monkeypatch.setattr(
        "nsadiag.analysis.resolve.RULES", tuple(changed if r.name == changed.name else r for r in RULES)
    )


def test_a_rule_that_fails_is_said_with_the_line_that_raised(
    recording: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(case: Case) -> Iterator[Any]:
        yield from {}["nothing"]

    with_check(monkeypatch, broken)
    (row,) = [r for r in explain([recording("healthy_ddp")])["rules"] if r["rule"] == "stale_optimizer"]
    assert row["failed"] == "KeyError('nothing')"
    assert row["line"].endswith(f"tests/analysis/rules/test_rules.py:{broken.__code__.co_firstlineno + 1}")


def test_why_not_says_that_its_own_record_of_what_a_rule_was_given_broke_off(
    recording: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(frame: FrameType) -> str:
        raise KeyError(frame.f_code.co_name)

    monkeypatch.setattr("nsadiag.analysis.tracing.answers.arguments", broken)
    document = why_not([recording("rank_killed_sigkill")], "network_stall")
    (row,) = [row for row in document["rules"] if row["rule"] == "network_stall"]
    assert row["result"] == "declined" and row["told"] == []
    assert row["untold"].startswith("KeyError(") and "tracing/answers.py" in row["untold"]
    assert f"recorded only in part: {row['untold']}" in text_of(document)


def test_a_rule_that_says_nothing_is_said_with_the_line_at_which_it_gave_up(
    recording: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(case: Case) -> Iterator[Any]:
        if case.cell.ranks:
            return
        yield

    with_check(monkeypatch, silent)
    document = why_not([recording("healthy_ddp")], "silently_wrong")
    (row,) = [r for r in document["rules"] if r["rule"] == "stale_optimizer"]
    assert row["line"].endswith(f"tests/analysis/rules/test_rules.py:{silent.__code__.co_firstlineno + 2}")
    assert row["line"] in text_of(document)


@pytest.mark.parametrize(
    "name", ["rank_conditional_validation", "rank_killed_sigkill", "gil_held_native_call_join"]
)
def test_what_is_ruled_out_is_what_why_not_says(recording: Callable[[str], Path], name: str) -> None:
    run = recording(name)
    rejected = judge_directory(run).rejected
    assert rejected
    for row in rejected:
        said = text_of(why_not([run], row.cls))
        assert row.because.removeprefix(EXPLAINED).removesuffix("...").strip() in said


def test_the_nearest_classes_are_ruled_out_first_each_by_another_fact(
    recording: Callable[[str], Path],
) -> None:
    verdict = judge_directory(recording("livelock_user_code_packing"))
    order = [cls for cls in BY_NAME[verdict.cls].confused_with if cls in {r.cls for r in verdict.rejected}]
    assert [r.cls for r in verdict.rejected] == order
    assert len({r.because for r in verdict.rejected}) == len(order) >= 3
    assert any("rank 1" in r.because and r.source for r in verdict.rejected)


def test_the_rules_of_other_classes_are_not_tried_for_what_is_ruled_out(
    recording: Callable[[str], Path],
) -> None:
    cell = load_cell(recording("rank_killed_sigkill"))
    found = resolve(Case(cell))
    assert found.winner
    after = found.attempts[found.attempts.index(found.winner) + 1 :]
    assert {cls for each in after for cls in each.rule.concludes} & set(found.winner.rule.confused_with)
    assert len(after) <= len(found.winner.rule.confused_with)


def keys_in(value: Any) -> Iterator[str]:
    """Keys of a document, at any depth."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys_in(each)
    yield from value if isinstance(value, dict) else ()


# Of a job whose rules, or whose record of them, failed.
OF_A_FAULT = {"failed", "untold"}


def test_the_contract_has_the_keys_of_what_explain_and_why_not_print(
    recording: Callable[[str], Path],
) -> None:
    page = (ROOT / "docs" / "contract.md").read_text()
    _, _, section = page.partition("### The rules that were tried")
    rows = re.findall(r"^\| (`.*?`) \|", section.partition("\n## ")[0], re.MULTILINE)
    documents = [
        explain([recording("rank_conditional_full_tensor")]),
        why_not([recording("rank_killed_sigkill")], "data_divergent_control_flow"),
    ]
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == {*keys_in(documents)} | OF_A_FAULT


@pytest.mark.parametrize("cls", sorted({promise.classes[0] for promise in promises()} & set(CLASSES)))
def test_why_not_is_a_page_for_the_class_with_the_most_rules(
    cls: str, recording: Callable[[str], Path]
) -> None:
    recorded = (p.name for p in promises() if p.classes[0] == cls and archive_of(p.name).exists())
    name = next(recorded, None)
    if name is None:
        pytest.skip("no script of the class has a recording")
    document = why_not([recording(name)], "silently_wrong")
    lines = text_of(document).splitlines()
    assert len(lines) <= MOST_LINES < len(text_of(document, everything=True).splitlines())
    # Every rule has its line.
    assert all(any(row["rule"] in line for line in lines) for row in document["rules"])


def test_why_not_takes_a_mechanism(recording: Callable[[str], Path]) -> None:
    document = why_not([recording("silently_wrong_max_on_one_rank")], "shared_draws")
    assert (document["class"], document["mechanism"]) == ("silently_wrong", "shared_draws")
    assert [row["rule"] for row in document["rules"]] == ["shared_draws", "differing_reductions"]
    first, *_ = text_of(document).splitlines()
    assert first == "shared_draws of silently_wrong (the verdict is silently_wrong, by differing_reductions)"


def test_explain_lists_every_rule_in_its_order(recording: Callable[[str], Path]) -> None:
    document = explain([recording("uneven_inputs_shards")])
    about_ranks = [rule.name for rule in RULES if rule.about == "ranks"]
    assert [row["rule"] for row in document["rules"]] == about_ranks
    assert document["candidates"][0]["class"] == "uneven_inputs" and "lost" not in document["candidates"][0]
    assert len(text_of(document).splitlines()) > len(about_ranks)


def test_every_candidate_but_the_best_has_the_fact_that_it_lost_by(
    recording: Callable[[str], Path],
) -> None:
    run = recording("rank_conditional_epoch_metric")
    best, *lost = explain([run])["candidates"]
    assert (best["class"], best["guilty_ranks"]) == ("rank_conditional_collective", [0])
    (by_length,) = [row for row in lost if row["class"] == "uneven_inputs"]
    assert "depends on the rank, and this one on" in by_length["lost"]
    assert by_length in why_not([run], "uneven_inputs")["candidates"]
    assert all(row["lost"] for row in lost)


def test_nothing_is_written_by_looking_at_the_rules(recording: Callable[[str], Path]) -> None:
    run = recording("uneven_inputs_shards")
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    explain([run])
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_a_class_that_is_not_there_is_a_usage_error_with_the_nearest_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["analyze", str(tmp_path), "--why-not", "network_stal"])
    assert isinstance(done.exception, UsageError)
    assert "network_stall" in done.exception.hint
