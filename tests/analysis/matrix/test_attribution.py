"""A planted cause is found where cells isolate it, and refused where they do not."""

from __future__ import annotations

import itertools
import random
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nsadiag.analysis.matrix.attribution import Attribution, Observation, Rule, attribute
from nsadiag.analysis.matrix.attribution_report import attributions

Axes = dict[str, tuple[str, ...]]


def observed(axes: Axes, cells: list[dict[str, str]], planted: dict[str, set[str]]) -> list[Observation]:
    """What running these cells shows if exactly those fail that have a planted setting of every planted factor."""
    return [
        Observation(
            factors=cell,
            ids=(",".join(f"{n}={v}" for n, v in cell.items()),),
            kind="crash" if all(cell[n] in values for n, values in planted.items()) else "healthy",
        )
        for cell in cells
    ]


def product(axes: Axes) -> list[dict[str, str]]:
    return [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values())]


@st.composite
def planted_spaces(draw: st.DrawFn) -> tuple[Axes, dict[str, set[str]]]:
    sizes = draw(st.lists(st.integers(2, 4), min_size=2, max_size=4))
    axes = {f"f{i}": tuple(map(str, range(size))) for i, size in enumerate(sizes)}
    names = draw(st.lists(st.sampled_from(list(axes)), min_size=1, max_size=3, unique=True))
    # At least one setting of each planted factor does not fail: else it would be no factor.
    planted = {n: set(draw(st.lists(st.sampled_from(axes[n][1:]), min_size=1, unique=True))) for n in names}
    return axes, planted


def as_sets(rule: Rule) -> dict[str, set[str]]:
    return {name: set(values) for name, values in rule.items()}


@settings(max_examples=80, deadline=None)
@given(planted_spaces())
def test_a_planted_rule_is_found_in_a_whole_space(space: tuple[Axes, dict[str, set[str]]]) -> None:
    axes, planted = space
    (found,) = attribute(axes, observed(axes, product(axes), planted))
    assert found.status == "isolated" and set(found.factors) == set(planted)
    assert [as_sets(rule) for rule in found.rules] == [planted]
    assert not found.untried and not found.propose


@settings(max_examples=150, deadline=None)
@given(planted_spaces(), st.integers(0, 10**6), st.floats(0.1, 0.9))
def test_of_some_cells_nothing_is_claimed_that_the_rest_would_belie(
    space: tuple[Axes, dict[str, set[str]]], seed: int, share: float
) -> None:
    axes, planted = space
    cells = [cell for cell in product(axes) if random.Random(f"{seed}{cell}").random() < share]
    found = attribute(axes, observed(axes, cells, planted))
    assume(found)
    for attribution in found:
        assert set(attribution.factors) <= set(planted), "what is proven has a part"
        if attribution.status == "isolated":
            assert_each_rule_is_true_where_it_was_tried(attribution, axes, planted)
        if attribution.status == "confounded":
            assert any(set(e) <= set(planted) for e in attribution.explanations) or len(planted) > 4
        for cell in attribution.propose:
            assert cell not in cells


def assert_each_rule_is_true_where_it_was_tried(
    found: Attribution, axes: Axes, planted: dict[str, set[str]]
) -> None:
    for rule in map(as_sets, found.rules):
        for name, values in rule.items():
            assert values <= planted.get(name, set(axes[name]))
        for name in set(planted) - set(rule):
            # The rule does not name this factor: then it was never tried with its harmless settings.
            assert set(axes[name]) - planted[name] <= set(found.untried[name])


@settings(max_examples=40, deadline=None)
@given(planted_spaces())
def test_a_factor_that_always_changed_with_the_planted_one_is_refused(
    space: tuple[Axes, dict[str, set[str]]],
) -> None:
    axes, planted = space
    shadowed = next(iter(planted))
    twin = {**axes, "twin": axes[shadowed]}
    cells = [{**cell, "twin": cell[shadowed]} for cell in product(axes)]
    (found,) = attribute(twin, observed(twin, cells, planted))
    assert found.status == "confounded"
    assert {frozenset(e) for e in found.explanations} >= {
        frozenset(planted), frozenset({*planted, "twin"} - {shadowed}),
    }  # fmt: skip
    assert found.propose
    settled = attribute(twin, observed(twin, [*cells, *map(dict, found.propose)], planted))
    while settled[0].status == "confounded":
        cells += map(dict, settled[0].propose)
        assert settled[0].propose, "it always says what to run next"
        settled = attribute(twin, observed(twin, cells, planted))
    assert set(settled[0].factors) == set(planted)


def matrix(rows: list[tuple[str, str | None]], axes: Axes) -> dict[str, Any]:
    cells = []
    for name, kind in rows:
        outcome, _, cls = (kind or "").partition("/")
        verdict = {"outcome": outcome, "class": cls or outcome, "where": None} if kind else None
        factors = dict(part.partition("=")[::2] for part in name.split(","))
        cells.append({"id": name, "factors": factors, "verdict": verdict})
    return {"axes": [{"name": n, "values": list(v)} for n, v in axes.items()], "cells": cells}


TWO = {"layers": ("1", "4", "5"), "binding": ("early", "late")}


def told(rows: list[tuple[str, str | None]], axes: Axes = TWO) -> dict[str, Any]:
    return attributions(matrix(rows, axes), lambda factors: True)[0]


def test_one_pair_isolates_a_factor_and_says_where_it_was_not_tried() -> None:
    found = told(
        [("layers=4,binding=early", "healthy"), ("layers=4,binding=late", "crashed/ddp_ready_twice")]
    )
    assert found["status"] == "isolated" and found["class"] == "ddp_ready_twice"
    assert found["words"] == (
        "It fails where binding is late. Changing binding from late to early, and nothing else, makes a failing "
        "cell healthy. Tested with layers 4 only; other settings may matter too."
    )
    assert found["propose"] == [{"layers": "1", "binding": "late"}, {"layers": "5", "binding": "late"}]


def test_what_stayed_at_its_base_is_not_made_much_of() -> None:
    axes = {**TWO, "mode": ("one", "ddp"), "precision": ("fp32", "bf16")}
    rest = "layers=1,binding={},mode=ddp,precision={}"
    rows = [(rest.format("early", "fp32"), "healthy")]
    rows += [(rest.format("late", p), "crashed/ddp_ready_twice") for p in ("fp32", "bf16")]
    document = matrix(rows, axes)
    for axis in document["axes"]:
        axis["base"] = axis["values"][0]
    (found,) = attributions(document, lambda factors: True)
    assert found["words"].endswith(
        "It fails alike with precision fp32 or bf16. Tested with mode ddp and defaults only; "
        "other settings may matter too."
    )
    assert [p["mode"] for p in found["propose"]] == ["one"], (
        "and the cell that would tell is the base of that"
    )


def test_factors_that_changed_together_are_refused_with_the_cells_that_would_tell() -> None:
    found = told(
        [("layers=4,binding=early", "healthy"), ("layers=5,binding=late", "crashed/ddp_ready_twice")]
    )
    assert found["status"] == "confounded"
    assert found["words"].startswith("Refused: layers or binding would explain it as well")
    assert found["propose"] == [{"layers": "4", "binding": "late"}, {"layers": "5", "binding": "early"}]


def test_a_threshold_is_said_as_one() -> None:
    rows = [(f"layers={n},binding=early", "hung/missing_rank" if n > 1 else "healthy") for n in (1, 4, 5)]
    assert "layers is 4 or more" in told(rows)["words"]


def test_a_cell_that_failed_otherwise_is_no_control_and_no_proof() -> None:
    rows = [
        ("layers=4,binding=early", "crashed/rank_exception"),
        ("layers=4,binding=late", "wrong/silently_wrong"),
    ]
    assert [a["status"] for a in attributions(matrix(rows, TWO), lambda f: True)] == ["no control"] * 2
    rows += [("layers=1,binding=early", "unknown"), ("layers=1,binding=late", None)]
    assert [a["status"] for a in attributions(matrix(rows, TWO), lambda f: True)] == ["no control"] * 2


def test_repeats_that_contradict_each_other_prove_nothing() -> None:
    rows = [
        ("layers=4,binding=early,repeat=1", "healthy"),
        ("layers=4,binding=early,repeat=2", "hung/missing_rank"),
    ]
    assert attributions(matrix(rows, TWO), lambda f: True) == []


def test_a_healthy_matrix_attributes_nothing() -> None:
    assert attributions(matrix([("layers=4,binding=early", "healthy")], TWO), lambda f: True) == []


def test_a_proposed_cell_is_one_that_can_be_run() -> None:
    rows = [("layers=4,binding=early", "healthy"), ("layers=5,binding=late", "crashed/ddp_ready_twice")]
    (found,) = attributions(matrix(rows, TWO), lambda factors: factors["layers"] != "4")
    assert found["propose"] == [{"layers": "5", "binding": "early"}]


def test_slow_by_degrees_is_neither_a_failure_nor_a_control() -> None:
    rows = [
        ("layers=4,binding=early", "slow/slow_compute"),
        ("layers=4,binding=late", "crashed/ddp_ready_twice"),
    ]
    assert [a["status"] for a in attributions(matrix(rows, TWO), lambda f: True)] == ["no control"]
