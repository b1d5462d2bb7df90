"""`nsadiag analyze --why-not CLASS` and `--explain`: how each rule went on a run directory, in facts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsadiag.analysis.code_lines import Answer
from nsadiag.analysis.explain.candidate import (
    CLASS_OF_KIND,
    CLASS_OF_PROVENANCE,
    DEPENDS,
    Candidate,
    named,
    stated,
    why_lost,
)
from nsadiag.analysis.resolve import Attempt
from nsadiag.analysis.rules.registry import CLASSES
from nsadiag.analysis.verdict import Trials, trials_of
from nsadiag.commands.analyze import is_matrix
from nsadiag.errors import UsageError
from nsadiag.evidence.spans import spans
from nsadiag.spec.strict import nearest

# From the rule: functions, those that they asked, and so on; and below those that found nothing.
DEEPEST, DEEPEST_EMPTY = 4, 6
EMPTY = ("nothing", "None", "False")
# Further down, only what leads to the tables and to the dependence of a condition on the rank.
DECISIVE = {"words", "of", "_is_uniform", "_agreed", "by_frames", "by_native", "by_kernel", "by_wchan"}
OF_THE_PROGRAM = {"uniform", "by_rank", "at_end"}  # sets of names, worked out once: no one condition's
LONGEST = 120  # characters of a value
OF_CANDIDATES = {*CLASS_OF_KIND.values(), *CLASS_OF_PROVENANCE.values()}


def _trials(path: Path, cls: str | None = None) -> Trials:
    if is_matrix(path):
        raise UsageError(f"{path} is a matrix", "give the directory of one of its cells")
    if not path.exists():
        raise UsageError(
            f"{path} does not exist", "give a run directory, or dumps, stacks or logs of other tools"
        )
    return trials_of(path, cls)


def why_not(path: Path, cls: str) -> dict[str, Any]:
    """The attempts of the rules that conclude a class, and that of the verdict, as `--json` prints them. Raises UsageError."""
    if cls not in CLASSES:
        raise UsageError(f"no class is called {cls!r}", nearest(cls, list(CLASSES)))
    trials = _trials(path, cls)
    resolution, candidates = trials.resolution, trials.candidates
    winner = resolution.winner
    tried = [t for t in resolution.attempts if cls in t.rule.concludes]
    return {
        "class": cls,
        "verdict": winner.finding.cls if winner and winner.finding else "unknown",
        "rules": [_row(t, winner) for t in (*tried, *([winner] if winner and winner not in tried else []))],
        "candidates": [_candidate(c, candidates[0]) for c in candidates if c.cls == cls],
    } | (_rejected(trials) if cls in OF_CANDIDATES else {})


def explain(path: Path) -> dict[str, Any]:
    """Every rule in the order of trial, and every candidate for a divergence, the best first. Raises UsageError."""
    trials = _trials(path)
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
        "kind": one.kind.value,
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
        {"fact": d.fact, "source": d.source, "line": tried.declined_at.get(d)} for d in tried.declined
    ]
    return row | {"declined": declined, "told": [_answer(each) for each in tried.told]}


def _answer(one: Answer) -> dict[str, Any]:
    row = {
        "function": one.function,
        "asked": one.asked,
        "line": one.line,
        "says": one.says,
        "times": one.times,
    }
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
    lines += _candidates(document)
    seen: set[str] = set()
    for row in document["rules"]:
        lines += _lines(row, seen)
    return "\n".join(lines)


def _candidates(document: dict[str, Any]) -> Iterator[str]:
    if document["candidates"] or "rejected" in document:
        yield "candidates for the divergence, the best first"
    for row in document["candidates"]:
        yield f"  {row['class']} of rank {spans(row['guilty_ranks'])}: {row['kind']} at {row['condition']}"
        yield f"    score: {_score(row)}"
        if "lost" in row:
            yield f"    lost: {row['lost']}"
    if not document["candidates"]:
        yield from _without_candidates(document)


def _without_candidates(document: dict[str, Any]) -> Iterator[str]:
    """The conditions that were looked at, where none of them came to be a candidate."""
    if "rejected" not in document:
        return
    keeps = f": {document['obstacle']}" if "obstacle" in document else ""
    yield f"  none{keeps}"
    for row in document["rejected"]:
        at = f" ({', '.join(row['lines'])})" if row["lines"] else ""
        yield f"  {row['condition']} {row['because']}{at}"


def _score(row: dict[str, Any]) -> str:
    decisive = f"decisive ({row['decisive']})" if row["decisive"] else "not decisive"
    return f"{decisive}; depends on {DEPENDS[row['depends_on']]}; shown by {row['shown_by']}"


def _lines(row: dict[str, Any], seen: set[str]) -> Iterator[str]:
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
    if "untold" in row:
        yield f"  a fault of nsadiag: what this rule was given could be recorded only in part: {row['untold']}"
    if row["told"]:
        yield "  facts that it was given"
        yield from _told(row["told"], seen)


def _told(
    answers: list[dict[str, Any]], seen: set[str], depth: int = 1, *, within: bool = True
) -> Iterator[str]:
    """One line for each function that answered, then what it was given itself; what stands above already is not repeated.

    `within`: not too deep to say all of it.
    """
    answers = [one for one in answers if within or _leads_on(one)]
    functions = [one["function"] for one in answers]
    for one in answers:
        # Of the only call of a function that was asked once, the arguments tell nothing apart.
        several = functions.count(one["function"]) > 1 or len(one["asked"]) > 1 or one["function"] in DECISIVE
        asked = f"({'; '.join(one['asked'])})" if several and one["asked"] else ""
        times = f", {one['times']} times" if one["times"] > 1 else ""
        says = textwrap.shorten(one["says"], LONGEST, placeholder=" ...")
        known = _fingerprint(one)
        again = " (as above)" if one["because"] and known in seen else ""
        yield f"{'  ' * depth}  {one['function']}{asked}: {says}{times} ({one['line']}){again}"
        if not again:
            seen.add(known)
            deepest = DEEPEST_EMPTY if one["says"] in EMPTY else DEEPEST
            yield from _told(one["because"], seen, depth + 1, within=within and depth < deepest)


def _leads_on(one: dict[str, Any]) -> bool:
    """Whether what decided stands there or further down."""
    if one["function"] in OF_THE_PROGRAM:
        return False
    return one["function"] in DECISIVE or any(map(_leads_on, one["because"]))


def _fingerprint(one: dict[str, Any]) -> str:
    """An answer's identity, all behind it included."""
    within = (_fingerprint(each) for each in one["because"])
    return f"{one['function']} {one['line']} {one['says']} [{' '.join(within)}]"


def _code(row: dict[str, Any]) -> str:
    """The line of code that said it, on a line of its own."""
    return f"\n    by {row['line']}" if row.get("line") else ""
