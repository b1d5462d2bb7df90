"""`nsadiag analyze --why-not CLASS` and `--explain`: how each rule went on a run directory, in facts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsadiag.analysis.code_lines import Answer
from nsadiag.analysis.explain.candidate import DEPENDS, Candidate, named, why_lost
from nsadiag.analysis.resolve import Attempt, Resolution
from nsadiag.analysis.rules.registry import CLASSES
from nsadiag.analysis.verdict import resolution_of
from nsadiag.commands.analyze import is_matrix, is_ours
from nsadiag.errors import UsageError
from nsadiag.evidence.spans import spans
from nsadiag.spec.strict import nearest

DEEPEST, DEEPEST_EMPTY = (
    4,
    6,
)  # from the rule: functions, those that they asked, and so on; and below those that found nothing
EMPTY = ("nothing", "None", "False")
LONGEST = 120  # characters of a value

Candidates = tuple[Candidate, ...]


def _resolution(path: Path, cls: str | None = None) -> tuple[Resolution, Candidates]:
    if is_matrix(path) or not is_ours(path):
        raise UsageError(
            f"{path} is no run directory", "give the directory of one run, or of one cell of a matrix"
        )
    return resolution_of(path, cls)


def why_not(path: Path, cls: str) -> dict[str, Any]:
    """The attempts of the rules that conclude a class, and that of the verdict, as `--json` prints them. Raises UsageError."""
    if cls not in CLASSES:
        raise UsageError(f"no class is called {cls!r}", nearest(cls, list(CLASSES)))
    resolution, candidates = _resolution(path, cls)
    winner = resolution.winner
    tried = [t for t in resolution.attempts if cls in t.rule.concludes]
    return {
        "class": cls,
        "verdict": winner.finding.cls if winner and winner.finding else "unknown",
        "rules": [_row(t, winner) for t in (*tried, *([winner] if winner and winner not in tried else []))],
        "candidates": [_candidate(c, candidates[0]) for c in candidates if c.cls == cls],
    }


def explain(path: Path) -> dict[str, Any]:
    """Every rule in the order of trial, and every candidate for a divergence, the best first. Raises UsageError."""
    resolution, candidates = _resolution(path)
    return {
        "rules": [_row(tried, resolution.winner) for tried in resolution.attempts],
        "candidates": [_candidate(each, candidates[0]) for each in candidates],
    }


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
    declined = [
        {"fact": d.fact, "source": d.source, "line": tried.declined_at.get(d)} for d in tried.declined
    ]
    return row | {"declined": declined, "told": [_answer(each) for each in tried.told]}


def _answer(one: Answer) -> dict[str, Any]:
    row = {"function": one.function, "line": one.line, "says": one.says, "times": one.times}
    return row | {"because": [_answer(each) for each in one.because]}


def _file(tried: Attempt) -> str:
    """The rule's source, from the folder that holds the package."""
    return f"{tried.rule.check.__module__.replace('.', '/')}.py"


def _result(tried: Attempt, winner: Attempt | None) -> str:
    if tried.finding:
        return "concluded" if tried is winner else "outranked"
    return "failed" if tried.failed else "declined"


def text_of(document: dict[str, Any]) -> str:
    """The same to read, line by line."""
    lines = [f"{document['class']} (the verdict is {document['verdict']})"] if "class" in document else []
    for row in document["rules"]:
        lines += _lines(row)
    if found := document["candidates"]:
        lines.append("candidates for the divergence, the best first")
    for row in found:
        lines.append(
            f"  {row['class']} of rank {spans(row['guilty_ranks'])}: {row['kind']} at {row['condition']}"
        )
        lines.append(f"    score: {_score(row)}")
        lines += [f"    lost: {row['lost']}"] if "lost" in row else []
    return "\n".join(lines)


def _score(row: dict[str, Any]) -> str:
    decisive = f"decisive ({row['decisive']})" if row["decisive"] else "not decisive"
    return f"{decisive}; depends on {DEPENDS[row['depends_on']]}; shown by {row['shown_by']}"


def _lines(row: dict[str, Any]) -> Iterator[str]:
    by = f" by {row['by']}" if "by" in row else ""
    yield f"{row['rule']}: {row['result']}{by} ({row['file']})"
    if "says" in row:
        yield f"  {row['class']}: {row['says']}{_code(row)}"
    if "failed" in row:
        yield f"  {row['failed']}{_code(row)}"
    for declined in row["declined"]:
        source = f" ({declined['source']})" if declined["source"] else ""
        yield f"  {declined['fact']}{source}{_code(declined)}"
    if row["result"] == "declined" and "line" in row:
        yield f"  it found nothing that it looks for{_code(row)}"
    if row["told"]:
        yield "  facts that it was given"
        yield from _told(row["told"], set())


def _told(answers: list[dict[str, Any]], seen: set[tuple[str, str]], depth: int = 1) -> Iterator[str]:
    """One line for each function that answered, then what it was given itself, once and not too deep."""
    for one in answers:
        times = f", {one['times']} times" if one["times"] > 1 else ""
        says = textwrap.shorten(one["says"], LONGEST, placeholder=" ...")
        yield f"{'  ' * depth}  {one['function']}: {says}{times} ({one['line']})"
        deepest = DEEPEST_EMPTY if one["says"] in EMPTY else DEEPEST
        if depth < deepest and (one["line"], one["says"]) not in seen:
            seen.add((one["line"], one["says"]))
            yield from _told(one["because"], seen, depth + 1)


def _code(row: dict[str, Any]) -> str:
    """The line of code that said it, on a line of its own."""
    return f"\n    by {row['line']}" if row.get("line") else ""
