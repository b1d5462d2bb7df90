"""Sides that ranks took of a branch, by the recorded paths of their code: where they begin to differ there, a patch of it begins to act.

Ranks that drift so may go on to meet at the same lines, in other rounds.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping

from nsadiag.evidence.rehearsal.paths import LOW, MOST_NUMBER, NUMBER, WHAT, Named, Walked, Word
from nsadiag.repair.change import Change
from nsadiag.repair.record import Record, Site
from nsadiag.repair.text import first_line
from nsadiag.source.syntax import parse

NOBODY = Named(number=0, text="")  # of a damaged path
BRANCHES = ast.If | ast.IfExp | ast.While | ast.For
Turn = tuple[Site, int, int]  # the branch, the line that comes next in its frame (0: none), calls before that


def parting(record: Record, change: Change) -> tuple[Site, dict[int, int]] | None:
    """The branch, of those that a change touches, by whose sides ranks come to make another number of calls in a round.

    And by rank the place in `seen` at which they leave it so. All have left it by one side before: it is no question of the rank.
    """
    branches = _changed_branches(change)
    turns = {
        rank: found
        for rank, own in record.ranks.items()
        if own.walked is not None and (found := turns_of(own.walked, branches))
    }
    known: set[Site] = set()
    for number, row in enumerate(zip(*turns.values(), strict=False)):
        site = row[0][0]
        if len({turn[0] for turn in row}) > 1:
            return None
        if len({turn[1] for turn in row}) == 1:
            known.add(site)
        elif not _meet_again(number, list(turns.values())):
            last = zip(turns, row, strict=True)
            places = {rank: _behind(record, rank, calls) for rank, (_, _, calls) in last}
            return (site, places) if site in known else None
    return None


def _meet_again(number: int, turns: list[list[Turn]]) -> bool:
    """Whether all ranks have made as many calls until the next turn."""
    if not all(len(own) > number + 1 for own in turns):
        return False
    return len({own[number + 1][2] - own[number][2] for own in turns}) == 1


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
            files.append(_code(walked, word).file)
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
            code = _code(walked, word)
            if code.line in branches.get(code.file, {}).values():
                break
    return found


def _code(walked: Walked, word: int) -> Named:
    return walked.names.get(word >> NUMBER & MOST_NUMBER, NOBODY)


def _behind(record: Record, rank: int, calls: int) -> int:
    """The place in `seen` behind so many calls."""
    seen = record.ranks[rank].seen
    made = itertools.accumulate(s.what == "call" for s in seen)
    return next((at + 1 for at, number in enumerate(made) if number == calls), 0) if calls else 0
