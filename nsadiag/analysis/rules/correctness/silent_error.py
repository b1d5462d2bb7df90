"""Drafts of the class silently_wrong, whose evidence is mostly one file, and whose guilty ranks are mostly all."""

from __future__ import annotations

from collections.abc import Iterable

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.invariants.operations import source
from nsadiag.analysis.rules.drafts import named
from nsadiag.analysis.rules.rule import Claims, Draft
from nsadiag.evidence.records import Place, Strength, Where


def silent_error(
    case: Case,
    summary: str,
    evidence: str
    | tuple[str, ...]
    | Claims,  # claims that invariants.jsonl shows, or claims with their files
    at: Place | str | None,  # the line, also as recordings have it
    where: Where,
    fix: str | None = None,
    *,
    strength: Strength = Strength.STRONG,
    ranks: Iterable[int] | None = None,  # the guilty ones, if not all
    shown_by: int | None = None,  # the rank whose invariants.jsonl shows it, if not the first
) -> Draft:
    """The draft of a rule on a job that ended well and trained wrongly."""
    claims = (evidence,) if isinstance(evidence, str) else evidence
    return Draft(
        strength=strength,
        summary=summary,
        guilty_ranks=tuple(rank.rank for rank in case.cell.ranks) if ranks is None else tuple(ranks),
        at=locations.of_text(at) if isinstance(at, str) else at,
        where=where,
        evidence=claims if isinstance(claims, dict) else dict.fromkeys(claims, source(case, shown_by)),
        fix=fix,
    )


def whose(case: Case, ranks: Iterable[int]) -> str:
    """`every rank`, or `ranks 0, 2`."""
    found = tuple(ranks)
    everyone = len(case.cell.everyone(found)) == case.cell.world_size
    return "every rank" if everyone else named(case.cell, found)
