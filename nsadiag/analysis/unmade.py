"""Files that a rank asks for again and again, and that some rank's failed code would have made.

A thread that writes catches what goes wrong and says so in the log; whoever waits for its file learns nothing of it.
What ties the two is the source: a name that the waiting code asks for stands in the very lines that the exception
kept from running.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nsadiag.analysis import loops
from nsadiag.analysis.exceptions import first_of, follows_a_peer
from nsadiag.analysis.inside import Stuck, living_children, stuck_inside
from nsadiag.analysis.load import CellEvidence, RankEvidence
from nsadiag.analysis.sources import tree_of
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Place
from nsadiag.evidence.sources import is_user

# A part of a file's name: an ending alone is that of too many, and prose has spaces.
NAME = re.compile(r"^(?!utf-?8$|\.\w+$)[\w./-]{4,}$", re.IGNORECASE)
SAYS = frozenset({"print", "log", "debug", "info", "warning", "warn", "error", "exception", "getLogger"})


@dataclass(frozen=True, kw_only=True)
class Unmade:
    """An exception that did not end its ranks, and who waits for what it kept from being made."""

    stuck: Stuck
    asks: str  # the condition of the loop that waits
    name: str
    rows: dict[int, tuple[int, dict[str, Any]]]  # by rank, with the line of raised.jsonl


def unmade(cell: CellEvidence, tables: Tables) -> Unmade | None:
    """The newest such exception; none that all ranks met, and none that a rank met twice and went on from."""
    for stuck in stuck_inside(cell, tables):
        at = stuck.standing.place
        asked = loops.asks(cell, at, has_children=bool(living_children(stuck))) if at else None
        if at is None or stuck.standing.doing != "sleep" or asked is None or asked[0] != "outside":
            continue
        wanted = _asked_for(cell, stuck.standing.frames, at)
        rows = [(rank, line, row) for rank in cell.ranks for line, row in _rows(rank)]
        tied = [(r, n, row, names) for r, n, row in rows if (names := wanted & _cut_off(cell, row))]
        if not tied:
            continue
        *_, newest, names = max(tied, key=lambda found: found[2]["t_mono_ns"])
        alike = {r.rank: (n, row) for r, n, row, _ in tied if _key(row) == _key(newest)}
        if len(alike) < len(cell.ranks):
            return Unmade(stuck=stuck, asks=asked[1], name=max(names, key=len), rows=alike)
    return None


def _rows(rank: RankEvidence) -> Iterator[tuple[int, dict[str, Any]]]:
    keys = [_key(row) for row in rank.raised]
    for line, row in enumerate(rank.raised, start=1):
        if keys.count(_key(row)) == 1 and row["how"] != "in flight" and not follows_a_peer(first_of(row)):
            yield line, row


def _key(row: dict[str, Any]) -> tuple[str, int]:
    return row["type"], int((row["frames"] or [{}])[-1].get("line") or 0)


def _asked_for(cell: CellEvidence, frames: tuple[Place, ...], at: Place) -> set[str]:
    """Names in the loop that asks, and in the calls that led to it: a path may come as an argument."""
    loop = loops.around(cell, at, (ast.While, ast.For))[0]
    found: set[str] = set()
    # A caller's line names what it calls next: of that only the arguments count, its body is the next frame.
    for place, callee in zip(frames, (None, *frames), strict=False):
        tree = tree_of(cell, place.file)
        scope = (loops.function_at(tree, place) or tree) if tree else None
        if tree and scope:
            asks = place.file == at.file and loop.lineno <= place.line <= (loop.end_lineno or 0)
            own: list[ast.AST] = [loop] if asks else _statements(scope, place.line, place.line)
            called = (callee.function or "").rpartition(".")[2] if callee else ""
            found |= _names(tree, [*own, *_bound(scope, _used(own))], but=called)
    return found


def _cut_off(cell: CellEvidence, row: dict[str, Any]) -> set[str]:
    """Names in the lines that the exception kept from running: its own, and what is below it in each function that it left."""
    found: set[str] = set()
    for frame in row["frames"]:
        tree = tree_of(cell, frame["file"]) if is_user(frame["file"]) else None
        at = Place(file=frame["file"], line=frame["line"], function=frame["function"])
        function = loops.function_at(tree, at) if tree else None
        if tree and function:
            found |= _names(tree, _statements(function, at.line, function.end_lineno or 0))
    return found


def _statements(within: ast.AST, first: int, last: int) -> list[ast.AST]:
    """Simple ones that hold a line of these, and the heads of others; without handlers, which do run."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(within):
        if not isinstance(node, ast.stmt):
            continue
        is_simple = not hasattr(node, "body")
        if is_simple and node.lineno <= last and (node.end_lineno or 0) >= first:
            found.append(node)
        elif not is_simple:
            heads = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr | ast.withitem)]
            found += heads if first <= node.lineno <= last else []
            found += _statements(node, first, last)
    return found


def _used(nodes: list[ast.AST]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def _bound(scope: ast.AST, names: set[str]) -> list[ast.AST]:
    """What those names are given in the function, and the names that stand in that."""
    found: list[ast.AST] = []
    for _ in range(2):
        found = [
            n.value
            for n in ast.walk(scope)
            if isinstance(n, ast.Assign) and {t.id for t in n.targets if isinstance(t, ast.Name)} & names
        ]
        names = names | _used(found)
    return found


def _names(tree: ast.Module, nodes: list[ast.AST], but: str = "") -> set[str]:
    """What may be part of a file's name there, or in the file's own functions and constants that are used there."""
    calls = {loops.name_of(n.func) for node in nodes for n in ast.walk(node) if isinstance(n, ast.Call)}
    helpers = [n for n in ast.walk(tree) if isinstance(n, loops.Function) and n.name in calls - {but}]
    used = _used([*nodes, *helpers])
    constants = [
        n.value
        for n in tree.body
        if isinstance(n, ast.Assign) and {t.id for t in n.targets if isinstance(t, ast.Name)} & used
    ]
    texts = (text for node in (*nodes, *helpers, *constants) for text in _texts(node))
    return {text for text in texts if NAME.search(text)}


def _texts(node: ast.AST) -> Iterator[str]:
    """Texts that are no messages, keys or answers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Call) and loops.name_of(node.func) in SAYS:
        return
    elif isinstance(node, ast.Subscript):
        yield from _texts(node.value)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _texts(value)
    elif not isinstance(node, ast.Compare | ast.Raise | ast.keyword):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)
