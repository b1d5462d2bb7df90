"""The text of `--why-not` and `--explain`: each rule's result, and the path to the answers that decided."""

from __future__ import annotations

import heapq
import itertools
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nsadiag.analysis.explain.candidate import DEPENDS
from nsadiag.evidence.phrases import count
from nsadiag.evidence.spans import spans

MOST_LINES = 80  # of one answer to --why-not
MOST_CONDITIONS = 8  # that made no candidate
MOST_PATHS = 3  # rules whose answers are printed, besides that of the verdict
FEW_RULES = 5  # of which each has all its facts; of more, those that declined by one fact share a line
FEW_FACTS = 4  # of one rule
LEAST_PATH = 6  # lines of answers that are worth printing
LEAST_ROOM = 10  # lines that a rule leaves to each that follows it
DEEPER = 0.5  # for an answer to an answer, where 1 is for the last answer but one
LONGEST = 110  # characters of a value, a condition, or what was asked
CUT = " ..."
EMPTY = ("nothing", "None")
ENOUGH_SAID = 8  # characters of an answer that a summary quotes
SHORTEST, ENOUGH = 3, 50  # characters of a value that is looked for in others, and by which it is known

Row = dict[str, Any]


def text_of(document: Row, *, everything: bool = False) -> str:
    """The same to read. `everything`: all answers, whatever came of them, and however many lines it takes."""
    lines = [_heading(document)] if "class" in document else []
    lines += _candidates(document, None if everything else MOST_CONDITIONS)
    rows = document["rules"]
    if everything or "class" not in document:
        seen = set[str]()
        for row in rows:
            lines += _facts(row, None)
            lines += _whole(row, seen) if everything else _path(row, MOST_LINES // 2, seen)
        return "\n".join(lines)
    return "\n".join([*lines, *_short(rows, MOST_LINES - len(lines))])


def _heading(document: Row) -> str:
    asked = f"{document['mechanism']} of {document['class']}" if document["mechanism"] else document["class"]
    winner = next((row["rule"] for row in document["rules"] if row["result"] == "concluded"), "")
    by = f", by {winner}" if winner not in ("", document["verdict"]) else ""
    return f"{asked} (the verdict is {document['verdict']}{by})"


# -- candidates for a divergence ------------------------------------------------------------------


def _candidates(document: Row, most: int | None) -> Iterator[str]:
    if document["candidates"] or "rejected" in document:
        yield "candidates for the divergence, the best first"
    for row in document["candidates"][:most]:
        yield f"  {row['class']} of rank {spans(row['guilty_ranks'])}: {row['kind']} at {row['condition']}"
        yield f"    score: {_score(row)}"
        if "lost" in row:
            yield f"    lost: {row['lost']}"
    yield from _left_out(document["candidates"], most, "  ")
    if not document["candidates"] and "rejected" in document:
        keeps = f": {document['obstacle']}" if "obstacle" in document else ""
        yield f"  none{keeps}"
        for row in document["rejected"][:most]:
            at = f" ({', '.join(row['lines'])})" if row["lines"] else ""
            yield f"  {row['condition']} {row['because']}{at}"
        yield from _left_out(document["rejected"], most, "  ")


def _score(row: Row) -> str:
    decisive = f"decisive ({row['decisive']})" if row["decisive"] else "not decisive"
    return f"{decisive}; depends on {DEPENDS[row['depends_on']]}; shown by {row['shown_by']}"


def _left_out(rows: list[Row], most: int | None, indent: str) -> Iterator[str]:
    if most is not None and len(rows) > most:
        yield f"{indent}and {len(rows) - most} more: --all"


# -- rules ----------------------------------------------------------------------------------------


def _short(rows: list[Row], room: int) -> list[str]:
    """The result of every rule, and the paths of the rules that came nearest to concluding, in that many lines."""
    nearest = sorted(rows, key=_nearness, reverse=True)
    with_path = [row for row in nearest if row["told"]][: MOST_PATHS + 1]
    grouped: dict[str, list[Row]] = {}
    if len(rows) > FEW_RULES:
        for row in rows:
            if row["result"] == "declined" and row not in with_path:
                grouped.setdefault(_reason(row), []).append(row)
    lines = [_declined(reason, alike) for reason, alike in grouped.items()]
    together = {row["rule"] for alike in grouped.values() for row in alike}
    # What is not repeated stands above: that of the verdict, which stands last, may leave out most.
    in_order = [*(row for row in rows if row not in with_path), *sorted(with_path, key=_is_verdict)]
    apart = {row["rule"]: list(_facts(row, FEW_FACTS)) for row in in_order if row["rule"] not in together}
    room -= len(lines) + sum(map(len, apart.values()))
    seen = set[str]()
    for row, share in _shares(sorted(with_path, key=_is_verdict), room):
        apart[row["rule"]] += _path(row, share, seen)
    return [*lines, *itertools.chain.from_iterable(apart.values())]


def _is_verdict(row: Row) -> bool:
    return bool(row["result"] == "concluded")


def _shares(nearest: list[Row], room: int) -> Iterator[tuple[Row, int]]:
    """The lines of answers that each rule may print: half of what is left, or all but a few."""
    for row in nearest:
        last = row is nearest[-1]
        share = room if last else max(room // 2, room - LEAST_ROOM * (len(nearest) - 1))
        share = min(share, sum(map(_size, row["told"])) + 2)
        if share >= LEAST_PATH:
            room -= share
            yield row, share


def _nearness(row: Row) -> tuple[int, int, int]:
    """The verdict's own rule first, then others that concluded; of those that declined, by the conditions that they passed."""
    ranks = {"concluded": 3, "outranked": 2, "failed": 1, "declined": 0}
    return ranks[row["result"]], sum(one["is_condition"] for one in row["told"]), len(row["told"])


def _declined(reason: str, rows: list[Row]) -> str:
    """Rules that declined for one reason; of one alone, the line of code."""
    names = ", ".join(row["rule"] for row in rows)
    line = next((each["line"] for each in rows[0]["declined"]), None)
    at = f" ({line})" if line and len(rows) == 1 else ""
    nothing = next(filter(None, map(_nothing_from, rows)), "")
    return f"{names}: declined: {reason}{at}{nothing}"


def _nothing_from(row: Row) -> str:
    """`; steps_of > _steps: nothing (file:line)`: the last function to find nothing, and the one that it has that from."""
    chain: list[Row] = []
    answers = row["told"]
    while found := [one for one in answers if _is_empty(one)]:
        chain.append(found[-1])
        answers = found[-1]["because"]
    if not chain:
        return ""
    functions = " > ".join(one["function"] for one in chain)
    return f"; {functions}: {chain[-1]['says']} ({chain[-1]['line']})"


def _is_empty(one: Row) -> bool:
    return one["decisive"] and not one["is_condition"] and one["says"] in EMPTY


def _reason(row: Row) -> str:
    if not row["declined"]:
        return f"it found nothing that it looks for ({row.get('line')})"
    first, *others = row["declined"]
    source = f" ({first['source']})" if first["source"] else ""
    return f"{first['fact']}{source}" + (f", and {len(others)} facts more" if others else "")


def _facts(row: Row, most: int | None) -> Iterator[str]:
    by = f" by {row['by']}" if "by" in row else ""
    yield f"{row['rule']}: {row['result']}{by} ({row['file']})"
    if "says" in row:
        yield f"  {row['class']}: {row['says']}"
    if "failed" in row:
        yield f"  {row['failed']}"
    if row.get("line") and row["result"] != "declined":
        yield f"    by {row['line']}"
    for declined in row["declined"][:most]:
        source = f" ({declined['source']})" if declined["source"] else ""
        yield f"  {declined['fact']}{source}"
        if declined["line"]:
            yield f"    by {declined['line']}"
    yield from _left_out(row["declined"], most, "  ")
    if row["result"] == "declined" and "line" in row:
        yield "  it found nothing that it looks for"
        yield f"    by {row['line']}"
    if "untold" in row:
        yield f"  a fault of nsadiag: what this rule was given could be recorded only in part: {row['untold']}"


# -- the answers that a rule was given --------------------------------------------------------------


def _path(row: Row, room: int, seen: set[str]) -> Iterator[str]:
    """The answers that decided, those nearest to the end first where there is no room for all."""
    if not row["told"]:
        return
    decided = [one for one in row["told"] if one["decisive"]] or row["told"]
    chosen = _chosen(decided, room - 2, seen, row.get("says", ""))
    yield "  what decided, an indented line for what the one above it depends on"
    yield from _lines(decided, seen, chosen=chosen)
    if left := sum(_size(one) for one in row["told"]) - len(chosen.answers):
        yield f"  and {count(left, 'answer')} more: --all"


def _whole(row: Row, seen: set[str]) -> Iterator[str]:
    if row["told"]:
        yield "  answers that it was given"
        yield from _lines(row["told"], seen, chosen=None)


@dataclass
class Chosen:
    """The answers to print, by identity, and by fingerprint those that one of them depends on: equal ones are printed once."""

    answers: set[int] = field(default_factory=set)
    because: dict[str, list[Row]] = field(default_factory=dict)


def _chosen(told: list[Row], room: int, seen: set[str], summary: str) -> Chosen:
    """Cheap is what came last before a call ended, and what has a part of the value that this call or one above it returned; cheapest, what the summary quotes."""
    chosen = Chosen(because={mark: [] for mark in seen})
    number = itertools.count()
    queue: list[tuple[float, int, Row, tuple[str, ...]]] = []

    def add(rows: list[Row], cost: float, values: tuple[str, ...]) -> None:
        later = 0
        for one in reversed([each for each in rows if each["decisive"]]):
            is_origin = any(_shares_a_value(one["says"], value) for value in values)
            distance = 0 if is_origin else math.log2(1 + later) + DEEPER
            heapq.heappush(queue, (cost + distance, next(number), one, values))
            later += not one["is_condition"]

    quoted = [one for one in told if one["says"].strip("'") in summary and len(one["says"]) > ENOUGH_SAID]
    add(quoted, -len(told), ())
    add(told, 0, ())
    while queue and len(chosen.answers) < room:
        cost, _, one, values = heapq.heappop(queue)
        chosen.answers.add(id(one))
        if (mark := _fingerprint(one)) not in chosen.because:
            chosen.because[mark] = one["because"]
            add(one["because"], max(cost, 0), (*values, one["says"]))
    return chosen


def _shares_a_value(says: str, value: str) -> bool:
    """Whether one of them holds the other."""
    one, other = says.strip("[](){}")[:ENOUGH], value.strip("[](){}")
    return min(len(one), len(other)) > SHORTEST and (one in other or other[:ENOUGH] in says)


def _lines(
    answers: list[Row], seen: set[str], *, chosen: Chosen | None, indent: str = "    "
) -> Iterator[str]:
    """One line for each answer, then those that it was given itself; what stands above already is not repeated."""
    functions = [one["function"] for one in answers]
    for one in answers:
        if chosen is not None and id(one) not in chosen.answers:
            continue
        # Of the only call of a function that was asked once, the arguments tell nothing apart.
        several = functions.count(one["function"]) > 1 or len(one["asked"]) > 1 or one["is_condition"]
        asked = f"({_cut('; '.join(one['asked']))})" if several and one["asked"] else ""
        times = f", {one['times']} times" if one["times"] > 1 else ""
        known = _fingerprint(one)
        again = " (as above)" if one["because"] and known in seen else ""
        space = " " if one["is_condition"] and asked else ""
        yield f"{indent}{_cut(one['function'])}{space}{asked}: {_cut(one['says'])}{times} ({one['line']}){again}"
        if not again:
            seen.add(known)
            because = chosen.because.get(known, []) if chosen else one["because"]
            yield from _lines(because, seen, chosen=chosen, indent=f"{indent}  ")


def _cut(text: str) -> str:
    return textwrap.shorten(text, LONGEST, placeholder=CUT)


def _size(one: Row) -> int:
    return 1 + sum(map(_size, one["because"]))


def _fingerprint(one: Row) -> str:
    """An answer's identity, all behind it included."""
    within = (_fingerprint(each) for each in one["because"])
    return f"{one['function']} {one['line']} {one['says']} [{' '.join(within)}]"
