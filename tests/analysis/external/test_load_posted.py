"""What people post is judged at least as well as it was: inputs rebuilt from public threads, with their truth."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace

import pytest
from support.documents.imports import ROOT
from support.recordings.posted import POSTED, REFUSED, Score, Truth, compared, score, truths

from nsadiag.analysis.rules.registry import CLASSES
from nsadiag.analysis.verdict import judge_evidence

HELD: dict[str, list[str]] = json.loads((POSTED / "held.json").read_text())
TRUTHS = truths(POSTED)
KEYS = {
    "name", "source", "year", "evidence", "world", "cause", "classes_right", "general", "guilty",
    "line", "next", "advice_right", "must_not", "strength",
}  # fmt: skip
ACTIONS = {"fix code", "fix environment", "retry", "exclude host", "wait", "stop", "unknown", "none"}


@pytest.mark.parametrize("name", sorted(HELD))
def test_what_was_right_of_a_posted_input_stays_right(name: str) -> None:
    now = score(POSTED / name)
    assert set(HELD[name]) <= now.met, now


def test_every_posted_input_is_held_in_what_is_right_of_it() -> None:
    assert sorted(HELD) == sorted(TRUTHS)


@pytest.mark.parametrize("name", sorted(TRUTHS))
def test_a_truth_is_complete_and_names_what_exists(name: str) -> None:
    truth = TRUTHS[name]
    assert truth.keys() - {"guilty_also"} == KEYS
    assert truth["name"] == name
    assert {*truth["classes_right"], *truth["general"]} <= {*CLASSES, REFUSED}
    assert {*truth["advice_right"]} <= ACTIONS
    assert truth["strength"] in ("fix commit", "thread", "derived")
    assert all(re.compile(pattern) for pattern in truth["must_not"])
    texts = [
        path.read_text(errors="replace") for path in (POSTED / name / "input").rglob("*") if path.is_file()
    ]
    assert texts
    assert not [text for text in texts if str(ROOT) in text]


def test_the_posted_inputs_are_of_many_repositories_and_years() -> None:
    sources = Counter(truth["source"].split("#")[0] for truth in TRUTHS.values())
    assert len(sources) >= 20
    assert {truth["year"] for truth in TRUTHS.values()} >= {2023, 2024, 2025, 2026}


def test_a_verdict_of_another_class_rank_line_and_advice_meets_nothing_of_the_truth() -> None:
    name = "skipped_sample"
    right = judged(name, TRUTHS[name])
    assert {"class", "ranks"} <= right.met
    elsewhere: Truth = {
        **TRUTHS[name],
        "classes_right": ["gpu_oom"],
        "general": [],
        "guilty": [0],
        "guilty_also": [],
        "line": "train.py:1",
        "advice_right": ["retry"],
        "must_not": ["missing_rank"],
    }
    assert judged(name, elsewhere).met == set()


def test_a_class_that_is_general_or_unknown_is_not_counted_as_right() -> None:
    name = "skipped_sample"
    truth = TRUTHS[name]
    general = judged(name, {**truth, "classes_right": ["gpu_oom"], "general": ["missing_rank"]})
    assert (general.grade, "class" in general.met, "not wrong" in general.met) == ("general", False, True)
    verdict = replace(judge_evidence(next((POSTED / name / "input").iterdir())), cls="unknown")
    assert compared(name, truth, verdict).grade == "unknown"


def judged(name: str, truth: Truth) -> Score:
    return compared(name, truth, judge_evidence(next((POSTED / name / "input").iterdir())))
