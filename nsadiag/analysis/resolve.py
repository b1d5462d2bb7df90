"""The finding that explains a cell: rules are tried in causal order, and each leaves a record of how it went."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from nsadiag.analysis.case import Tables
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.rules.reasons import lacking
from nsadiag.analysis.rules.registry import RULES
from nsadiag.analysis.rules.rule import Rule
from nsadiag.evidence.records import Finding

# Even the last rule can fail.
NOTHING = Finding(
    detector="unknown",
    cls="unknown",
    outcome="unknown",
    confidence=0.0,
    summary="The evidence could not be judged: what each detector tripped over is among the gaps.",
    next="nsadiag report . --format issue, and send what it writes to the authors of nsadiag",
)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One rule tried on a cell: its finding, or the facts by which it declined, or the error by which it failed."""

    rule: Rule
    finding: Finding | None = None
    declined: tuple[Declined, ...] = ()
    failed: str | None = None


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The attempts in causal order, as far as they were needed: the first finding explains those after it."""

    attempts: tuple[Attempt, ...]

    @property
    def winner(self) -> Attempt | None:
        """The attempt whose finding no other one explains."""
        return next((each for each in self.attempts if each.finding), None)

    @property
    def outcome(self) -> tuple[Finding, tuple[str, ...]]:
        """Its finding, and a gap for each rule before it that failed on this evidence."""
        gaps: list[str] = []
        for each in self.attempts:
            if each.finding:
                return each.finding, tuple(gaps)
            if each.failed:
                gaps.append(f"detector {each.rule.check.__name__} failed: {each.failed}")
        return NOTHING, tuple(gaps)


def attempt(rule: Rule, cell: CellEvidence, tables: Tables) -> Attempt:
    """The rule's first finding, or why it has none.

    A rule that trips over evidence nobody foresaw must not cost the person the verdict.
    """
    declined = []
    try:
        for said in rule.check(cell, tables):
            if isinstance(said, Finding):
                return Attempt(rule=rule, finding=said)
            declined.append(said)
    except Exception as error:
        return Attempt(rule=rule, failed=repr(error))
    return Attempt(rule=rule, declined=tuple(declined))


def resolve(cell: CellEvidence, tables: Tables, *, everything: bool = False) -> Resolution:
    """Tries rules until one speaks; `everything`: also those that it explains, and which evidence a rule lacked."""
    attempts = []
    for rule in RULES:
        tried = attempt(rule, cell, tables)
        if everything and not tried.finding and not tried.failed:
            facts = dict.fromkeys((*lacking(cell, rule.needs), *tried.declined))
            tried = dataclasses.replace(tried, declined=tuple(facts))
        attempts.append(tried)
        if tried.finding and not everything:
            break
    return Resolution(attempts=tuple(attempts))
