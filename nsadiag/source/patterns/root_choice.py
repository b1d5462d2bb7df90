"""The origin of a collective's root: from the call back through names and returned values."""

from __future__ import annotations

import ast

from nsadiag.evidence.records import Place
from nsadiag.source.model import Function, SourceModel, calls_in, name_of, place, returned_by

KEYWORDS = frozenset({"src", "dst", "group_src", "group_dst"})
SECOND = frozenset(
    {"broadcast", "broadcast_object_list", "reduce"}
)  # the root may stand there without its name
DEEPEST = 6


def chosen_at(code: SourceModel, call: Place) -> Place | None:
    """The line at which all that the source tells ends: a choice, a count, a setting; None where it is the call's own."""
    file = code.file(call.file)
    statement = file.statement_at(call.line) if file else None
    roots = [root for each in calls_in(statement) if (root := _root(each))] if statement else []
    if file is None or len(roots) != 1:
        return None
    found = _origin(file.tree, roots[0], file.function_at(call.line), None)
    if found is None or found[0].lineno == roots[0].lineno:
        return None
    node, function = found
    return place(call.file, node.lineno, function.name if function else None)


def _root(call: ast.Call) -> ast.expr | None:
    named = [k.value for k in call.keywords if k.arg in KEYWORDS]
    if named:
        return named[0]
    name = name_of(call)
    return call.args[1] if name in SECOND and len(call.args) > 1 else None


def _origin(
    tree: ast.Module, node: ast.expr, function: Function | None, part: int | None, depth: int = 0
) -> tuple[ast.expr, Function | None] | None:
    """`part`: of a tuple, which of its values is meant. None where the source leaves a choice."""
    if depth > DEEPEST:
        return None
    if part is not None and isinstance(node, ast.Tuple):
        return _origin(tree, node.elts[part], function, None, depth + 1) if part < len(node.elts) else None
    if isinstance(node, ast.Name):
        given = _assigned(function or tree, node.id)
        return _origin(tree, given[0][0], function, given[0][1], depth + 1) if len(given) == 1 else None
    if isinstance(node, ast.Call):
        called = _function(tree, name_of(node))
        returned = returned_by(called) if called else []
        if called and len(returned) == 1:
            return _origin(tree, returned[0], called, part, depth + 1)
    return node, function


def _assigned(scope: ast.AST, name: str) -> list[tuple[ast.expr, int | None]]:
    """Values that the name gets, each with the part of it that is meant."""
    found: list[tuple[ast.expr, int | None]] = []
    for node in ast.walk(scope):
        for target, value in _bindings(node):
            if isinstance(target, ast.Name) and target.id == name:
                found.append((value, None))
            for number, each in enumerate(target.elts if isinstance(target, ast.Tuple) else ()):
                if isinstance(each, ast.Name) and each.id == name:
                    found.append((value, number))
    return found


def _bindings(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign) and node.value is not None:
        return [(node.target, node.value)]
    return [(node.target, node.iter)] if isinstance(node, ast.For) else []


def _function(tree: ast.Module, name: str) -> Function | None:
    found = [n for n in ast.walk(tree) if isinstance(n, Function) and n.name == name]
    return found[0] if len(found) == 1 else None
