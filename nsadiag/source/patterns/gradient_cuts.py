"""Places in the user's sources at which a value loses its gradient, or a gradient is scaled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.model import Node, SourceModel, calls_in, name_of, names_in, only, place

CUTS = frozenset({"detach", "detach_", "data", "item", "tolist", "numpy", "no_grad", "inference_mode"})
NUMBERS = frozenset({"item", "tolist"})
SCALES = frozenset({"div_", "mul_"})


def cut_between(code: SourceModel, file: str, first: int, last: int) -> Place | None:
    """The first line of these that detaches something, or turns it into numbers."""
    cuts = ((n.end_lineno or n.lineno) for n in _in_file(code, file, ast.Attribute) if n.attr in CUTS)
    line = min((line for line in cuts if first <= line <= last), default=None)
    return place(file, line, None) if line else None


def used_after(code: SourceModel, file: str, line: int) -> Place | None:
    """The first line after a call that uses what the call was given as its first argument."""
    given = _given_at(code, file, line)
    loads = (n for n in _in_file(code, file, ast.Name) if isinstance(n.ctx, ast.Load) and n.id in given)
    used = min((n.lineno for n in loads if n.lineno > line), default=None)
    return place(file, used, None) if used else None


def number_in_loss(code: SourceModel) -> Place | None:
    """The line that adds a number, taken out of the graph, to a loss: it changes what is printed, and no gradient."""
    losses = _losses(code)
    for file, node in code.nodes(ast.AST):
        if (file, _assigned(node)) in losses and any(map(_is_number, _addends(_value(node)))):
            return place(file, getattr(node, "lineno", 0), None)
    return None


def gradient_scaling(code: SourceModel, number: float) -> Place | None:
    """The one line that divides gradients in place, by that number where several do."""
    found = [(file, *scaled) for file, node in code.nodes(ast.AST) if (scaled := _scaling(node))]
    by_number = [
        (file, line) for file, line, by in found if isinstance(by, ast.Constant) and by.value == number
    ]
    return only(by_number or ((file, line) for file, line, _ in found))


def _scaling(node: ast.AST) -> tuple[int, ast.expr] | None:
    if (
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Div | ast.Mult)
        and _is_gradient(node.target)
    ):
        return node.lineno, node.value
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return None
    scales = node.func.attr in SCALES and _is_gradient(node.func.value)
    return (node.lineno, node.args[0]) if scales else None


def _is_gradient(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def _assigned(node: ast.AST) -> str | None:
    target = (
        node.targets[0]
        if isinstance(node, ast.Assign)
        else node.target
        if isinstance(node, ast.AugAssign)
        else None
    )
    return target.id if isinstance(target, ast.Name) else None


def _value(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.AugAssign):
        return node.value if isinstance(node.op, ast.Add | ast.Sub) else None
    return node.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) else None


def _addends(value: ast.expr | None) -> Iterator[ast.expr]:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        yield from _addends(value.left)
        yield from _addends(value.right)
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div):
        # A weight in front of the number.
        yield from (side for side in (value.left, value.right) if isinstance(side, ast.Call))
    elif value is not None:
        yield value


def _is_number(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Name):
        return value.func.id == "float"
    return isinstance(value.func, ast.Attribute) and value.func.attr in (*NUMBERS, "detach")


def constant_losses(code: SourceModel) -> list[Place]:
    """Lines that make a tensor of their own ask for a gradient, outside of what a module or an optimizer keeps."""
    statements = [(f, s) for f, s in code.nodes(ast.stmt) if isinstance(s, ast.Return | ast.Assign)]
    lines = (
        (file, each.lineno)
        for file, each in statements
        if not _is_kept(each) and any(map(_asks_for_gradient, calls_in(each)))
    )
    return [place(file, line, None) for file, line in dict.fromkeys(lines)]


def _is_kept(statement: ast.AST) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Attribute) for target in targets)


def _asks_for_gradient(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
        return not call.args and isinstance(call.func.value, ast.Call)
    asked = any(
        k.arg == "requires_grad" and isinstance(k.value, ast.Constant) and k.value.value
        for k in call.keywords
    )
    return asked and name_of(call) != "Parameter"


def reaches_loss(code: SourceModel, file: str, line: int) -> bool:
    """Whether what the call on that line fills is used, by name after name, in what is called backward on.

    A function that returns it hands it on to whoever assigns the result of a call by its name.
    """
    names = {(file, name) for name in _given_at(code, file, line)}
    assigned = [
        (path, names_in(*(node.targets if isinstance(node, ast.Assign) else [node.target])), node.value)
        for path, node in code.nodes(ast.stmt)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None
    ]
    while True:
        handed_on = _returning(code, names)
        more = {
            (path, target)
            for path, targets, value in assigned
            if handed_on & _called(value) or any((path, name) in names for name in names_in(value))
            for target in targets
        }
        if more <= names:
            return bool(names & _losses(code))
        names |= more


def _returning(code: SourceModel, names: set[tuple[str, str]]) -> set[str]:
    """Functions that return one of these names of their file, or something made of it."""
    return {
        function.name
        for path, function in code.nodes(ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None
        if any((path, name) in names for name in names_in(node.value))
    }


def _called(value: ast.expr) -> set[str]:
    calls = (node for node in ast.walk(value) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def _losses(code: SourceModel) -> set[tuple[str, str]]:
    """Names that `backward()` is called on, by file."""
    return {
        (file, name)
        for file, call in code.nodes(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
        for name in names_in(call.func.value)
    }


def _given_at(code: SourceModel, file: str, line: int) -> set[str]:
    """Names that calls on that line are given as their first argument."""
    calls = (call for call in _in_file(code, file, ast.Call) if call.lineno == line and call.args)
    return {call.args[0].id for call in calls if isinstance(call.args[0], ast.Name)}


def _in_file(code: SourceModel, file: str, kind: type[Node]) -> Iterator[Node]:
    return (node for name, node in code.nodes(kind) if name == file)
