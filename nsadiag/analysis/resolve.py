"""The finding that explains a cell: rules are tried in causal order, and each leaves a record of how it went."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.culprits import with_others
from nsadiag.analysis.rules.drafts import finding_of
from nsadiag.analysis.rules.reasons import lacking
from nsadiag.analysis.rules.registry import RULES
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.analysis.tracing.answers import Answer, answers
from nsadiag.analysis.tracing.lines import raised_at, returned_at, suspended_at
from nsadiag.evidence.records import Finding, Rejected, Strength

RULED_OUT = 5  # classes that a verdict names beside its own
EXPLAINED = "would explain less: "  # before what an outranked rule says
LONGEST = 200  # characters of a sentence that another rule would have said

# Even the last rule can fail.
NOTHING = Finding(
    mechanism="unknown",
    cls="unknown",
    outcome="unknown",
    strength=Strength.NONE,
    summary="The evidence could not be judged: what each detector tripped over is among the gaps.",
    next="nsadiag report . --format issue, and send what it writes to the authors of nsadiag",
)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One rule tried on a cell: its finding, the facts that kept it from any other, or the error by which it failed."""

    rule: Rule
    finding: Finding | None = None
    declined: tuple[Declined, ...] = ()
    failed: str | None = None
    ended_at: str | None = None  # the lines of code that concluded, failed or gave up, from the rule inwards
    declined_at: Mapping[Declined, str] = field(default_factory=dict)  # and those that gave each reason
    told: tuple[Answer, ...] = ()  # what it was told by the facts and relations that it asked
    untold: str | None = None  # the error of ours by which the record of that broke off


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
        """Its finding with the classes that are ruled out, and a gap for each rule before it that failed on this evidence."""
        gaps: list[str] = []
        for each in self.attempts:
            if each.finding:
                return dataclasses.replace(each.finding, rejected=self.ruled_out), tuple(gaps)
            if each.failed:
                gaps.append(f"detector {each.rule.name} failed: {each.failed}")
        return NOTHING, tuple(gaps)

    @property
    def ruled_out(self) -> tuple[Rejected, ...]:
        """The classes that the winner's is confused with, nearest first, and the fact that speaks against each."""
        winner = self.winner
        if winner is None or winner.finding is None:
            return ()
        found: dict[str, Rejected] = {}  # by fact: what speaks against two classes is said once
        for cls in winner.rule.confused_with:
            row = self._against(cls, winner.finding) if cls != winner.finding.cls else None
            # A fact that the summary states already rules nothing out for its reader.
            if row and row.because.casefold() not in winner.finding.summary.casefold():
                found.setdefault(row.because, row)
        return tuple(found.values())[:RULED_OUT]

    def _against(self, cls: str, winner: Finding) -> Rejected | None:
        """The fact of the class's own rule, or of the first other one that has something to say."""
        for tried in sorted(self.attempts, key=lambda each: each.rule.name != cls):
            if cls in tried.rule.concludes and (row := _spoken(tried, cls, winner)):
                return row
        return None


def _spoken(tried: Attempt, cls: str, winner: Finding) -> Rejected | None:
    """A finding that the winner explains, or of the facts that kept the rule from one the nearest to the guilty ranks."""
    lost = tried.finding
    if lost and lost.cls == cls and lost.summary[1:] in winner.summary:
        return None  # it is said there, as of another culprit
    if lost and lost.cls == cls:
        source = lost.evidence[0].source if lost.evidence else None
        return Rejected(
            cls=cls,
            because=f"{EXPLAINED}{textwrap.shorten(lost.summary, LONGEST, placeholder=' ...')}",
            source=source,
        )
    if not tried.declined:
        return None
    fact = nearest_fact(tried, winner)
    return Rejected(cls=cls, because=fact.fact, source=fact.source)


def nearest_fact(tried: Attempt, winner: Finding) -> Declined:
    """The nearest to the guilty ranks of the facts that kept a rule from concluding. There must be one."""
    return min(tried.declined, key=lambda each: _distance(each, winner))


def _distance(fact: Declined, winner: Finding) -> int:
    """The distance of a fact to the finding: of a guilty rank, of any record, or of none."""
    if fact.source is None:
        return 2
    return 0 if any(fact.source.startswith(f"ranks/{rank:05d}/") for rank in winner.guilty_ranks) else 1


def attempt(rule: Rule, case: Case) -> Attempt:
    """The rule's first finding, or why it has none.

    A rule that trips over evidence nobody foresaw must not cost the person the verdict.
    """
    declined: dict[Declined, str] = {}
    try:
        check = rule.check(case)
        for said in check:
            at = suspended_at(check)
            if isinstance(said, Draft):
                return Attempt(
                    rule=rule,
                    finding=finding_of(rule, said, case.cell),
                    declined=tuple(declined),
                    ended_at=at,
                    declined_at=declined,
                )
            declined.setdefault(said, at)
    except Exception as error:
        return Attempt(rule=rule, failed=repr(error), ended_at=raised_at(error))
    return Attempt(rule=rule, declined=tuple(declined), declined_at=declined)


def resolve(case: Case, *, everything: bool = False) -> Resolution:
    """Tries rules until one speaks, and then those of the classes that it is confused with.

    `everything`: all rules, and which evidence each lacked.
    """
    rules = rules_for(case)
    if everything:
        tried = [_in_full(attempt(rule, case), case) for rule in rules]
        return Resolution(attempts=tuple(tried))
    found: list[Attempt] = []
    for rule in rules:
        found.append(attempt(rule, case))
        first = found[-1].finding
        if first:
            found[-1] = dataclasses.replace(found[-1], finding=with_others(case, rule, first, rules))
            found += _neighbours(case, found)
            break
    return Resolution(attempts=tuple(found))


def rules_for(case: Case) -> tuple[Rule, ...]:
    """The rules that are about what the job is made of, in causal order."""
    about = {"actors"} if case.cell.ray else {"ranks", "collected"} if case.cell.collected else {"ranks"}
    return tuple(rule for rule in RULES if rule.about in about)


def _neighbours(case: Case, tried: list[Attempt]) -> Iterator[Attempt]:
    """By class that the last of `tried` is confused with: its rules, its own first, until one has something to say."""
    done = {each.rule.name: each for each in tried}
    for cls in tried[-1].rule.confused_with:
        for rule in sorted(rules_for(case), key=lambda rule: rule.name != cls):
            if cls not in rule.concludes:
                continue
            if rule.name not in done:
                done[rule.name] = attempt(rule, case)
                yield done[rule.name]
            if done[rule.name].finding or done[rule.name].declined:
                break


def _in_full(tried: Attempt, case: Case) -> Attempt:
    """An attempt with the evidence that its rule lacked; where the rule gave no reason, with the line at which it gave up."""
    if tried.finding or tried.failed:
        return tried
    facts = dict.fromkeys((*lacking(case.cell, tried.rule.needs), *tried.declined))
    code = getattr(tried.rule.check, "__code__", None)
    at = None if tried.declined else returned_at(code, lambda: list(tried.rule.check(case)))
    return dataclasses.replace(tried, declined=tuple(facts), ended_at=at)


def with_answers(tried: Attempt, case: Case) -> Attempt:
    """The attempt with what its rule was told; the rule runs again, on a case in which nothing is known yet."""
    fresh = Case(case.cell)
    found, untold = answers(lambda: attempt(tried.rule, fresh))
    told: list[Answer] = []
    for each in found:
        # A check may return the generator that does its work.
        is_check = each.function == getattr(tried.rule.check, "__name__", None)
        told += each.because if is_check else [] if each.function == finding_of.__name__ else [each]
    return dataclasses.replace(tried, told=tuple(told), untold=untold)
