"""The condition in the user's source that decides whether a module runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.sources import tree_of
from nsadiag.evidence.records import Place


def branch_around(cell: CellEvidence, parameter: str) -> Place | None:
    """The one `if` of a method that stands around `self.<module of the parameter>`; None if there is none, or several."""
    parts = parameter.split(".")[:-1]
    found = []
    for file in cell.sources:
        tree = tree_of(cell, file)
        if tree is not None:
            found += [(file, *each) for each in _branches(tree, set(parts))]
    if len({(file, line) for file, line, _ in found}) != 1:
        return None
    file, line, function = found[0]
    return places.place(file, line, function)


def _branches(tree: ast.Module, names: set[str]) -> Iterator[tuple[int, str]]:
    for method in ast.walk(tree):
        if isinstance(method, ast.FunctionDef) and method.name != "__init__":
            for node in ast.walk(method):
                if isinstance(node, (ast.If, ast.IfExp)) and _uses(_inside(node), names):
                    yield node.lineno, method.name


def _inside(node: ast.If | ast.IfExp) -> list[ast.AST]:
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    return [*node.body, *node.orelse]


def _uses(nodes: list[ast.AST], names: set[str]) -> bool:
    inner = (child for node in nodes for child in ast.walk(node))
    return any(
        isinstance(each, ast.Attribute)
        and each.attr in names
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
        for each in inner
    )
