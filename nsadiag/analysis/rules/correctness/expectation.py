"""Expectations: what steps of a correct job keep, each as a row of a table, and a rule of its own for every row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nsadiag.analysis.case import Case
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.correctness.silent_error import silent_error
from nsadiag.analysis.rules.reasons import in_recorded_steps
from nsadiag.analysis.rules.rule import Check, Claims, Draft, Family, Need, Rule
from nsadiag.evidence.records import Place, Strength, Where

NOT_MET = "what this is about did not happen in them"

Relation = Literal["order", "copies", "states", "samples"]


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A job that breaks an expectation: what the sentences of its row are filled with, and the line."""

    at: Place | str | None
    where: Where
    words: Mapping[str, Any] = field(default_factory=dict)
    more: Claims = field(default_factory=dict)  # claims that another file than invariants.jsonl shows
    ranks: Iterable[int] | None = None  # the guilty ones, if not all
    shown_by: int | None = None  # the rank whose invariants.jsonl shows it, if not the first
    strength: Strength | None = None  # where it is not the row's


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A row: what a correct job keeps, and what is said of one that does not.

    `find` answers with the first violation, with None where its preconditions do not hold, or with the fact that kept it
    from one. `says` and `claim` are templates of a violation's `words`.
    """

    name: str
    detected: str  # Markdown
    find: Callable[[Case], Violation | str | None]
    says: str
    claim: str
    fix: str
    strength: Strength = Strength.LIKELY

    def check(self, case: Case) -> Iterator[Draft | Declined]:
        """The violation, as a rule has it."""
        found = self.find(case)
        if found is None or isinstance(found, str):
            yield from in_recorded_steps(case, found or NOT_MET)
        else:
            yield silent_error(
                case,
                self.says.format_map(found.words),
                found.more or self.claim.format_map(found.words),
                found.at,
                found.where,
                strength=found.strength or self.strength,
                ranks=found.ranks,
                shown_by=found.shown_by,
            )


def rules_of(
    *rows: Expectation,
    keeps: Relation,
    explained_by: tuple[str, ...] = (),
    needs: tuple[Need, ...] = (),
) -> tuple[Rule, ...]:
    """A rule for each row. The first that concludes decides: a row explains those behind it."""
    return tuple(
        Rule(
            called=row.name,
            family="correctness",
            detected=row.detected,
            fix=row.fix,
            check=functools.wraps(row.find)(functools.partial(Expectation.check, row)),
            needs=needs,
            explained_by=(*explained_by, *(before.name for before in rows[:number])),
            keeps=keeps,
        )
        for number, row in enumerate(rows)
    )


def each_of(
    family: Family,
    rows: Mapping[Check, tuple[str, str]],
    *,
    when: Callable[[Case], bool] = lambda case: True,
    kept: Check | None = None,
    keeps: Relation,
    explained_by: tuple[str, ...] = (),
    needs: tuple[Need, ...] = (),
) -> tuple[Rule, ...]:
    """A rule for each check, with what it detects and the fix: of one relation that needs more than a row to be told.

    `when`: what all of them need; `kept` yields the facts that kept all from concluding, behind the last.
    """
    found: list[Rule] = []
    for number, (check, (detected, fix)) in enumerate(rows.items(), 1):
        last = kept if number == len(rows) else None
        found.append(
            Rule(
                family=family,
                detected=detected,
                fix=fix,
                check=functools.wraps(check)(functools.partial(_where, when, check, last)),
                needs=needs,
                explained_by=(*explained_by, *(before.name for before in found)),
                keeps=keeps,
            )
        )
    return tuple(found)


def _where(
    when: Callable[[Case], bool], check: Check, kept: Check | None, case: Case
) -> Iterator[Draft | Declined]:
    said = False
    for each in check(case) if when(case) else ():
        said = True
        yield each
    if when(case) and kept:
        yield from kept(case)
    elif not said:
        yield from in_recorded_steps(case, NOT_MET)
