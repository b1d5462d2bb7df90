"""Several independent culprits in one job: ranks that are each blocked on their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.blocked import blocked_ranks, hung_ranks
from nsadiag.analysis.rules.drafts import finding_of
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Act, Finding

OF_EACH = 2  # rows of evidence that each further culprit brings
DETERMINISTIC: tuple[Act, ...] = ("fix code",)
BY_THEMSELVES = "blocked"  # the family of causes inside one rank


def with_others(case: Case, rule: Rule, finding: Finding, rules: Iterable[Rule]) -> Finding:
    """The finding, extended by other independently blocked ranks, each by its own rule: peers wait for them, or they stand at the same line.

    If one explained the other there would be an edge between them in the wait-for graph; these wait for no rank.
    """
    if rule.family != BY_THEMSELVES or finding.outcome != "hung" or case.cell.ray:
        return finding
    # Of a job that does not stand still, as where ranks spin, those that wait for no peer.
    hung = hung_ranks(case) or blocked_ranks(case)
    waited_for = {blocked.number for blocked in hung if blocked.waited}
    left = {blocked.number for blocked in hung} - {*finding.guilty_ranks}
    others = [
        other
        for other in _findings(case, left, rules)
        if {*other.guilty_ranks} <= waited_for or _is_at_same_line(other, finding)
    ]
    if not others:
        return finding
    all_of_them = [finding, *others]
    guilty = {rank for each in all_of_them for rank in each.guilty_ranks}
    blocked = {rank for each in all_of_them for rank in each.blocked_ranks}
    besides = [f" Besides, {other.summary[:1].lower()}{other.summary[1:]}" for other in others]
    fixes = dict.fromkeys(each.fix for each in all_of_them if each.fix)
    return dataclasses.replace(
        finding,
        summary=finding.summary + "".join(besides),
        guilty_ranks=tuple(sorted(guilty)),
        blocked_ranks=tuple(sorted(blocked - guilty)),
        evidence=(*finding.evidence, *(row for other in others for row in other.evidence[:OF_EACH])),
        # A retry does not help if one of them follows from the code.
        actions=DETERMINISTIC if any(o.actions == DETERMINISTIC for o in others) else finding.actions,
        fix=" ".join(fixes) or None,
    )


def _is_at_same_line(one: Finding, other: Finding) -> bool:
    if one.where is None or other.where is None or one.where.file is None:
        return False
    return (one.where.file, one.where.line) == (other.where.file, other.where.line)


def _findings(case: Case, left: set[int], rules: Iterable[Rule]) -> Iterator[Finding]:
    """One finding for each of these ranks that a rule explains, by the first rule in causal order."""
    for rule in (each for each in rules if each.family == BY_THEMSELVES):
        if not left:
            return
        for said in _drafts(case, rule):
            if said.guilty_ranks and {*said.guilty_ranks} <= left:
                left -= {*said.guilty_ranks}
                yield finding_of(rule, said, case.cell)


def _drafts(case: Case, rule: Rule) -> list[Draft]:
    """The rule's drafts; none if it fails on the evidence, which must not cost the verdict found so far."""
    try:
        return [said for said in rule.check(case) if isinstance(said, Draft)]
    except Exception:
        return []
