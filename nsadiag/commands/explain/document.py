"""`nsadiag analyze --why-not NAME` and `--explain`: how each rule went on a run directory, in facts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from nsadiag.analysis.explain.candidate import (
    CLASS_OF_KIND,
    CLASS_OF_PROVENANCE,
    Candidate,
    named,
    stated,
    why_lost,
)
from nsadiag.analysis.records import Declined
from nsadiag.analysis.resolve import Attempt, nearest_fact
from nsadiag.analysis.rules.registry import CLASSES, RULES
from nsadiag.analysis.tracing.answers import Answer
from nsadiag.analysis.verdict import Trials, trials_of
from nsadiag.commands.analyze import check_one_job
from nsadiag.errors import UsageError
from nsadiag.spec.strict import nearest

OF_CANDIDATES = {*CLASS_OF_KIND.values(), *CLASS_OF_PROVENANCE.values()}


def _trials(paths: Sequence[Path], names: Collection[str] = ()) -> Trials:
    check_one_job(paths)
    return trials_of(*paths, rules=names)


def why_not(paths: Sequence[Path], name: str) -> dict[str, Any]:
    """The attempts of a mechanism, or of all that conclude a class, and that of the verdict, as `--json` prints them.

    Raises UsageError.
    """
    rules = [rule for rule in RULES if name in rule.concludes] or [r for r in RULES if r.name == name]
    if not rules:
        known = sorted({*CLASSES, *(rule.name for rule in RULES)})
        raise UsageError(f"no class or mechanism is called {name!r}", nearest(name, known))
    cls = name if name in CLASSES else rules[0].cls
    names = [rule.name for rule in rules]
    trials = _trials(paths, names)
    resolution, candidates = trials.resolution, trials.candidates
    winner = resolution.winner
    tried = [t for t in resolution.attempts if t.rule.name in names]
    return {
        "class": cls,
        "mechanism": None if name in CLASSES else name,
        "verdict": winner.finding.cls if winner and winner.finding else "unknown",
        "rules": [_row(t, winner) for t in (*tried, *([winner] if winner and winner not in tried else []))],
        "candidates": [_candidate(c, candidates[0]) for c in candidates if c.cls == cls],
    } | (_rejected(trials) if cls in OF_CANDIDATES else {})


def explain(paths: Sequence[Path]) -> dict[str, Any]:
    """Every rule in the order of trial, and every candidate for a divergence, the best first. Raises UsageError."""
    trials = _trials(paths)
    resolution, candidates = trials.resolution, trials.candidates
    return {
        "rules": [_row(tried, resolution.winner) for tried in resolution.attempts],
        "candidates": [_candidate(each, candidates[0]) for each in candidates],
    } | _rejected(trials)


def _rejected(trials: Trials) -> dict[str, Any]:
    """The conditions that made no candidate, and the fact that keeps the question from being asked, if there is one."""
    rows = [
        {"condition": stated(each.condition), "because": each.because, "lines": list(lines)}
        for each, lines in trials.rejections.items()
    ]
    return {"rejected": rows} | ({"obstacle": trials.obstacle.fact} if trials.obstacle else {})


def _candidate(one: Candidate, best: Candidate) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": str(one.kind),
        "class": one.cls,
        "guilty_ranks": list(one.guilty),
        "condition": named(one),
    }
    row |= {"decisive": one.decisive, "depends_on": one.provenance, "shown_by": one.proximity.shown_by}
    return row if one is best else row | {"lost": why_lost(one, best)}


def _row(tried: Attempt, winner: Attempt | None) -> dict[str, Any]:
    row: dict[str, Any] = {"rule": tried.rule.name, "file": _file(tried), "result": _result(tried, winner)}
    if tried.ended_at:
        row["line"] = tried.ended_at
    if tried.finding:
        row |= {"class": tried.finding.cls, "says": tried.finding.summary}
    if row["result"] == "outranked" and winner:
        row["by"] = winner.rule.name
    if tried.failed:
        row["failed"] = tried.failed
    if tried.untold:
        row["untold"] = tried.untold
    declined = [
        {"fact": d.fact, "source": d.source, "line": tried.declined_at.get(d)}
        for d in _nearest(tried, winner)
    ]
    return row | {"declined": declined, "told": [_answer(each) for each in tried.told]}


def _answer(one: Answer) -> dict[str, Any]:
    row = {
        "function": one.function,
        "asked": one.asked,
        "line": one.line,
        "says": one.says,
        "times": one.times,
        "decisive": one.decisive,
        "is_condition": one.is_condition,
    }
    return row | {"because": [_answer(each) for each in one.because]}


def _file(tried: Attempt) -> str:
    """The rule's source, from the folder that holds the package."""
    return f"{tried.rule.check.__module__.replace('.', '/')}.py"


def _result(tried: Attempt, winner: Attempt | None) -> str:
    if tried.finding:
        return "concluded" if tried is winner else "outranked"
    return "failed" if tried.failed else "declined"


def _nearest(tried: Attempt, winner: Attempt | None) -> list[Declined]:
    """Facts that kept it from concluding; first the fact by which a verdict rules its class out."""
    if winner is None or winner.finding is None or not tried.declined:
        return list(tried.declined)
    first = nearest_fact(tried, winner.finding)
    return [first, *(each for each in tried.declined if each is not first)]
