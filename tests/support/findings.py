"""What a rule concludes from a cell, without the facts by which it declines."""

from __future__ import annotations

from nsadiag.analysis.case import Case
from nsadiag.analysis.rules.drafts import finding_of
from nsadiag.analysis.rules.registry import RULES
from nsadiag.analysis.rules.rule import Check, Draft
from nsadiag.evidence.records import Finding


def findings(check: Check, case: Case) -> list[Finding]:
    """All of them, in the order in which it yields them."""
    rule = next(rule for rule in RULES if rule.check is check)
    return [finding_of(rule, said, case.cell) for said in check(case) if isinstance(said, Draft)]
