"""A claim is confirmed or refuted by cells that differ in its factor alone, and by no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nsadiag.analysis.matrix.claims import settle
from nsadiag.analysis.matrix.criteria import shape_of
from nsadiag.spec.criterion import parse_criterion

CLASSES = {
    "healthy": "healthy", "hung": "missing_rank", "crashed": "rank_exception", "slow": "slow_compute",
    "wrong": "silently_wrong", "unknown": "unknown", "twice": "ddp_ready_twice",
}  # fmt: skip
Cells = dict[str, Any]


def cell(name: str, kind: str | None, **more: Any) -> Cells:
    """A cell of matrix.json; `kind~` was cut short by its time-out."""
    kind, cut, _ = (kind or "").partition("~")
    outcome = "crashed" if kind == "twice" else kind
    verdict = {"outcome": outcome, "class": CLASSES[kind], "where": more.pop("where", None)} if kind else None
    return {"id": name, "verdict": verdict, "stopped": "timeout" if cut else None, "state": "done", **more}


def tried(confirmed_if: str, a: list[str | None], b: list[str | None], **parity: Any) -> dict[str, Any]:
    """The claim's document after one trial with these repeats of a and b."""
    cells = [cell(f"{side}{n}", kind) for side, kinds in (("a", a), ("b", b)) for n, kind in enumerate(kinds)]
    ids = {side: [c["id"] for c in cells if c["id"][0] == side] for side in "ab"}
    return settle([claim(confirmed_if, [ids])], {"cells": cells, **parity})[0]


def claim(confirmed_if: str, trials: list[dict[str, list[str]]]) -> dict[str, Any]:
    return {
        "claim": "it is x", "factor": "x", "criterion": parse_criterion(confirmed_if),
        "trials": [{"context": {"place": str(n)}, "cells": ids} for n, ids in enumerate(trials)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("confirmed_if", "a", "b", "status"),
    [
        ("only b fails", "healthy", "crashed", "confirmed"),
        ("only b fails", "healthy", "healthy", "refuted"),
        ("only b fails", "crashed", "crashed", "refuted"),
        ("only b fails", "crashed", "hung", "not tested"),  # for different reasons
        ("only b fails", "crashed", "healthy", "refuted"),
        ("only a fails", "crashed", "healthy", "confirmed"),
        ("only b fails", "healthy", "slow~", "not tested"),  # its time was up
        ("only b fails", "healthy", "healthy~", "not tested"),
        ("only b fails", "healthy", "unknown", "not tested"),
        ("only b fails", "healthy", None, "not tested"),
        ("only b is hung", "healthy", "hung", "confirmed"),
        ("only b is hung", "slow~", "slow~", "refuted"),  # progress until the time-out: slow is not hung
        ("only b is hung", "healthy", "healthy~", "refuted"),
        ("only b is hung", "healthy", "crashed", "not tested"),  # it could not come to hang
        ("only b is hung", "hung", "hung", "refuted"),
        ("only b is missing_rank", "healthy", "hung", "confirmed"),
        ("only b is ddp_ready_twice", "healthy", "twice", "confirmed"),
        ("only b is ddp_ready_twice", "healthy", "crashed", "not tested"),
        ("only b is ddp_ready_twice", "twice", None, "refuted"),  # it happens without b as well
        ("only b is ddp_ready_twice", "unknown", "healthy", "refuted"),  # and does not with it
        ("only b is ddp_ready_twice", "hung", "twice", "not tested"),
        ("a is ddp_ready_twice and b is silently_wrong", "twice", "wrong", "confirmed"),
        ("a is ddp_ready_twice and b is silently_wrong", "twice", "healthy", "refuted"),
        ("a is ddp_ready_twice and b is silently_wrong", "twice", "hung", "not tested"),
        ("verdicts differ", "healthy", "hung", "confirmed"),
        ("verdicts differ", "twice", "twice", "refuted"),
        ("verdicts differ", "healthy", "unknown", "not tested"),
        ("verdicts differ", "healthy", "slow~", "not tested"),
    ],
)  # fmt: skip
def test_a_pair_decides_as_its_criterion_says(confirmed_if: str, a: str, b: str, status: str) -> None:
    assert tried(confirmed_if, [a], [b])["status"] == status


def test_repeats_that_agree_count_and_are_counted() -> None:
    settled = tried("only b fails", ["healthy"] * 2, ["twice"] * 2)
    assert settled["status"] == "confirmed" and settled["cells"] == ["a0", "a1", "b0", "b1"]
    assert settled["because"] == "x=a: healthy, 2 of 2; x=b: crashed (ddp_ready_twice), 2 of 2"


def test_repeats_that_contradict_each_other_settle_nothing() -> None:
    settled = tried("only b fails", ["healthy"] * 3, ["hung", "healthy", "healthy"])
    assert settled["status"] == "not settled"
    assert settled["because"] == "flaky: x=b: 1 of 3 repeats fail"


def test_a_repeat_that_says_nothing_leaves_the_others_to_speak() -> None:
    assert tried("only b fails", ["healthy", None], ["crashed", "unknown"])["status"] == "confirmed"


def test_places_that_say_different_things_are_told_apart() -> None:
    cells = [cell("a", "healthy"), cell("b", "twice"), cell("c", "healthy"), cell("d", "healthy")]
    trials = [{"a": ["a"], "b": ["b"]}, {"a": ["c"], "b": ["d"]}]
    (settled,) = settle([claim("only b fails", trials)], {"cells": cells})
    assert settled["status"] == "depends"
    assert settled["because"] == (
        "x=a: healthy; x=b: crashed (ddp_ready_twice) [place=0]; but x=a: healthy; x=b: healthy [place=1]"
    )
    assert [t["holds"] for t in settled["trials"]] == [True, False]


def test_a_claim_that_cannot_be_tried_here_says_why() -> None:
    (settled,) = settle([{"claim": "it is torch", "not_tested": "one version here"}], {"cells": []})
    assert (settled["status"], settled["because"]) == ("not tested", "one version here")


def test_a_claim_without_cells_is_not_tested() -> None:
    (settled,) = settle([claim("only b fails", [])], {"cells": []})
    assert (settled["status"], settled["because"]) == ("not tested", "its cells were not run")


def test_a_difference_comes_from_parity() -> None:
    def judged(*rows: tuple[str, str, str]) -> str:
        parity = [{"cell": c, "control": of, "judgement": judgement} for c, of, judgement in rows]
        return str(tried("b differs from a", ["healthy"] * 2, ["healthy"] * 2, parity=parity)["status"])

    assert judged() == "not tested"
    assert judged(("b0", "a0", "not_comparable")) == "not tested"
    assert judged(("b0", "a0", "differs"), ("b1", "a1", "differs")) == "confirmed"
    assert judged(("b0", "a0", "same")) == "refuted"
    assert judged(("b0", "c", "differs"), ("a0", "b0", "differs")) == "not tested"
    assert judged(("b0", "a0", "differs"), ("b1", "a1", "same")) == "not settled"


def measured(confirmed_if: str, values: dict[str, float | None], kind: str = "healthy") -> dict[str, Any]:
    cells = [cell(x, kind, costs={"step_s_median": y, "peak_rss_mib": y}) for x, y in values.items()]
    return settle([claim(confirmed_if, [{x: [x] for x in values}])], {"cells": cells})[0]


@pytest.mark.parametrize(
    ("claimed", "values", "status"),
    [
        ("linear", {"1": 1.0, "2": 2.1, "4": 3.9, "5": 5.0}, "confirmed"),
        ("linear", {"128": 0.534, "512": 1.366, "2048": 7.13}, "confirmed"),
        ("linear", {"1": 11.0, "2": 12.0, "40": 50.0}, "confirmed"),
        ("linear", {"1": 1.0, "2": 4.0, "4": 16.0, "8": 64.0}, "refuted"),
        ("superlinear", {"1": 1.0, "2": 4.0, "4": 16.0, "8": 64.0}, "confirmed"),
        ("constant", {"128": 1.0, "512": 4.0, "2048": 16.0}, "refuted"),
        ("constant", {"1": 300.0, "5": 301.0}, "confirmed"),
        ("constant", {"1": 300.0, "5": 600.0}, "refuted"),
        ("linear", {"1": 1.0, "2": 1.0, "4": 1.1}, "refuted"),
        ("linear", {"1": 1.0, "2": 9.0, "4": 1.1, "5": 7.0}, "not tested"),
        ("linear", {"1": 1.0, "2": None, "4": 4.0}, "not tested"),
    ],
)  # fmt: skip
def test_a_cost_along_numbers_has_a_shape(claimed: str, values: dict[str, float | None], status: str) -> None:
    assert measured(f"step time is {claimed}", values)["status"] == status


def test_a_cliff_is_no_line() -> None:
    assert shape_of(np.array([1.0, 2, 4, 5]), np.array([1.0, 2, 4, 40])) not in ("linear", "constant")


def test_the_cost_of_a_cell_that_hung_does_not_count() -> None:
    assert measured("step time is constant", {"1": 1.0, "2": 1.0}, "hung")["status"] == "not tested"


def test_a_ratio_is_told_with_its_values() -> None:
    settled = measured("peak memory of b exceeds 1.5 times a", {"a": 100.0, "b": 180.0})
    assert (
        settled["status"] == "confirmed"
        and settled["because"] == "peak memory 1.80 times: x=b 180 MiB, x=a 100 MiB"
    )
    assert measured("peak memory of b exceeds 1.5 times a", {"a": 100.0, "b": 120.0})["status"] == "refuted"


@pytest.mark.parametrize(
    ("kind", "phase", "status"),
    [("slow~", "forward", "refuted"), ("hung", "backward", "confirmed"), ("slow~", None, "not tested"), ("healthy", "backward", "not tested")],
)  # fmt: skip
def test_where_a_job_stood_comes_from_its_verdict(kind: str, phase: str | None, status: str) -> None:
    cells = [cell("a", kind, where={"phase": phase})]
    (settled,) = settle([claim("it stands in backward", [{"a": ["a"]}])], {"cells": cells})
    assert settled["status"] == status
