"""Sides that ranks took of a branch, by the recorded paths of their code: where they begin to differ there, a patch of it begins to act.

Ranks that drift so may go on to meet at the same lines, in other rounds.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping

from nsadiag.evidence.rehearsal.paths import LOW, MOST_NUMBER, NUMBER, WHAT, Walked, Word
from nsadiag.repair.change import Change
from nsadiag.repair.record import Record, Site
from nsadiag.repair.text import first_line
from nsadiag.source.syntax import parse

BRANCHES = ast.If | ast.IfExp | ast.While | ast.For
Turn = tuple[
    Site, int, int
]  # the branch, the line that came next in its frame (0: none), and calls before that


def parting(record: Record, change: Change) -> tuple[Site, dict[int, int]] | None:
    """The first branch of those that a change touches which ranks left by different sides, after all had left it by one, and by rank the place in `seen`."""
    branches = _changed_branches(change)
    turns = {
        rank: found
        for rank, own in record.ranks.items()
        if own.walked is not None and (found := turns_of(own.walked, branches))
    }
    if len(turns) < 2:
        return None
    known: set[Site] = set()
    for row in zip(*turns.values(), strict=False):
        if len({turn[:2] for turn in row}) > 1:
            site = row[0][0]
            if site not in known:
                return None
            places = zip(turns, row, strict=True)
            return site, {rank: _behind(record, rank, calls) for rank, (_, _, calls) in places}
        known.add(row[0][0])
    return None


def _changed_branches(change: Change) -> dict[str, dict[int, int]]:
    """By file, the lines of its branches that are not kept, each with the first line of the function around it; 1: the module.

    A statement whose exception is handled is one, too.
    """
    found: dict[str, dict[int, int]] = {}
    for file in change.files:
        if not file.path.endswith(".py"):
            continue
        nodes = list(ast.walk(parse(file.before)))
        functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        handled = [n for each in nodes if isinstance(each, ast.Try) for s in each.body for n in ast.walk(s)]
        branches = [n for n in nodes if isinstance(n, BRANCHES)] + [
            n for n in handled if isinstance(n, ast.stmt)
        ]
        found[file.path] = {
            line: max(
                (first_line(f) for f in functions if f.lineno <= line <= (f.end_lineno or 0)), default=1
            )
            for line in {n.lineno for n in branches} - file.kept.keys()
        }
    return found


def turns_of(walked: Walked, branches: Mapping[str, Mapping[int, int]]) -> list[Turn]:
    """In their order; none behind the point from which lines of such a function are not recorded any more."""
    found: list[Turn] = []
    files, at = [""], list[Site | None]([None])  # of each open frame; `at`: the branch that its last line is
    calls = 0
    for word in walked.words:
        what, low = word >> WHAT, word & LOW
        if what == Word.CALL:
            calls = low
        elif what == Word.ENTER:
            files.append(walked.names[word >> NUMBER & MOST_NUMBER].file)
            at.append(None)
        elif what == Word.LINE:
            if (branch := at[-1]) is not None and low != branch[1]:
                found.append((branch, low, calls))
            at[-1] = (files[-1], low) if low in branches.get(files[-1], ()) else None
        elif what == Word.LEAVE and len(files) > 1:
            files.pop()
            if (branch := at.pop()) is not None:
                found.append((branch, 0, calls))
        elif what == Word.FOLDED:
            code = walked.names[word >> NUMBER & MOST_NUMBER]
            if code.line in branches.get(code.file, {}).values():
                break
    return found


def _behind(record: Record, rank: int, calls: int) -> int:
    """The place in `seen` behind so many calls."""
    seen = record.ranks[rank].seen
    made = itertools.accumulate(s.what == "call" for s in seen)
    return next((at + 1 for at, number in enumerate(made) if number == calls), 0) if calls else 0
