"""The one line of the user's sources that does a certain thing; None where there is none, or several."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.loops import Function, name_of
from nsadiag.analysis.sources import tree_of
from nsadiag.evidence.records import Place

SEEDS = "manual_seed"


def only_call(cell: CellEvidence, function: str) -> Place | None:
    """The line that calls it."""
    return only_where(cell, lambda call: _name(call) == function)


def only_where(cell: CellEvidence, is_it: Callable[[ast.Call], bool]) -> Place | None:
    """The line of the one call of which that is true."""
    return _only((file, call.lineno) for file, call in _calls(cell) if is_it(call))


def only_keyword(cell: CellEvidence, keyword: str) -> Place | None:
    """The line that gives an argument of that name: in the call itself, or in a dict that is unpacked into it."""
    named = ((file, k) for file, call in _calls(cell) for k in call.keywords if k.arg == keyword)
    found = [(file, k.value.lineno) for file, k in named if not _is_none(k.value)]
    for file, node in _nodes(cell):
        if isinstance(node, ast.Dict):
            keys = zip(node.keys, node.values, strict=True)
            found += [(file, v.lineno) for k, v in keys if isinstance(k, ast.Constant) and k.value == keyword and not _is_none(v)]  # fmt: skip
    return _only(iter(found))


def thawed(cell: CellEvidence) -> Place | None:
    """The line that makes parameters trainable: by a plain True, or else by what may be one."""
    calls = [
        (file, call.lineno, _given(call)) for file, call in _calls(cell) if _name(call) == "requires_grad_"
    ]
    sets = [
        (file, node.lineno, [node.value])
        for file, node in _nodes(cell)
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Attribute) and t.attr == "requires_grad" for t in node.targets)
    ]
    plain = [(file, line) for file, line, given in calls + sets if all(_is(True, g) for g in given)]
    return _only(iter(plain)) or _only(
        (file, line) for file, line, given in calls + sets if not any(_is(False, g) for g in given)
    )


def seeded_by_rank(cell: CellEvidence) -> Place | None:
    """The line that seeds torch's generator, itself or through a function of the user's, with something named after the rank."""
    seeding = {SEEDS} | {
        node.name for _, node in _nodes(cell) if isinstance(node, Function) and _hands_on_to_seed(node)
    }
    return _only(
        (file, call.lineno)
        for file, call in _calls(cell)
        if (_name(call) in seeding or SEEDS in ast.unparse(call.func))
        and any("rank" in ast.unparse(given).lower() for given in _given(call))
    )


def _hands_on_to_seed(function: Function) -> bool:
    """Whether it seeds with what it was given, as helpers do that seed several generators."""
    arguments = {a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    seeded = (c for c in ast.walk(function) if isinstance(c, ast.Call) and _name(c) == SEEDS)
    nodes = (n for call in seeded for given in _given(call) for n in ast.walk(given))
    return any(isinstance(n, ast.Name) and n.id in arguments for n in nodes)


def _nodes(cell: CellEvidence) -> Iterator[tuple[str, ast.AST]]:
    for file in cell.sources:
        tree = tree_of(cell, file)
        yield from ((file, node) for node in ast.walk(tree)) if tree else ()


def _calls(cell: CellEvidence) -> Iterator[tuple[str, ast.Call]]:
    return ((file, node) for file, node in _nodes(cell) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> str:
    return name_of(call.func)


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]


def _is(value: bool, node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _only(lines: Iterator[tuple[str, int]]) -> Place | None:
    found = list(lines)
    return places.place(*found[0], None) if len(found) == 1 else None
