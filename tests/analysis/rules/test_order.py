"""Of rules of one family that conclude on one recording, one declares that the other explains it: no name decides."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from support.recordings.golden import archive_of, recorded
from support.recordings.verdicts import Recordings

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.resolve import attempt, rules_for
from nsadiag.analysis.rules.registry import RULES
from nsadiag.analysis.rules.rule import Rule


def explaining(rule: Rule, among: dict[str, Rule]) -> set[str]:
    """The rules whose findings outrank its own by what it and they declare."""
    found: set[str] = set()
    left = [rule]
    while left:
        rule = left.pop()
        new = {*rule.explained_by, *(n for n, each in among.items() if rule.name in each.explains)} - found
        found |= new
        left += [among[name] for name in new]
    return found


def undeclared(rules: Sequence[Rule], concluded: set[str]) -> list[tuple[str, str]]:
    """Pairs of one family that both concluded, and of which neither explains the other."""
    among = {rule.name: rule for rule in rules}
    spoke = [rule for rule in rules if rule.name in concluded]
    return [
        (one.name, other.name)
        for one, other in itertools.combinations(spoke, 2)
        if one.family == other.family
        if one.name not in explaining(other, among) and other.name not in explaining(one, among)
    ]


def concluding(recordings: Recordings, name: str) -> set[str]:
    case = Case(load_cell(recordings.of(archive_of(name)).path))
    tried = [attempt(rule, case) for rule in rules_for(case)]
    assert {each.rule.name: each.failed for each in tried if each.failed} == {}
    return {each.rule.name for each in tried if each.finding}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", recorded())
def test_rules_of_one_family_that_conclude_on_one_recording_declare_which_wins(
    name: str, recordings: Recordings
) -> None:
    assert undeclared(RULES, concluding(recordings, name)) == []


def test_a_pair_whose_edge_is_missing_is_found(recordings: Recordings) -> None:
    concluded = concluding(recordings, "async_work_copied_back_early")
    bare = [dataclasses.replace(rule, explained_by=()) for rule in RULES]
    assert ("async_work_not_waited", "replica_drift") in undeclared(bare, concluded)
