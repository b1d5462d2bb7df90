"""Conditions that ask whether a rank has anything at all, in front of a call that merges what all ranks have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import Scope, given_to, last_name

CONTAINERS = frozenset({"list", "dict", "set", "tuple", "defaultdict", "deque", "OrderedDict", "Counter"})
SIZES = frozenset({"numel", "size", "__len__"})
DEEPEST = 4


def merges_what_it_asks_for(program: Program, guard: Condition, way: tuple[Place, ...]) -> bool:
    """Whether what is counted in the condition is given away on the way from it to a collective.

    Who has nothing then skips a call to which it had an empty share to give: `if losses: all_gather(parts, losses)`.
    """
    try:
        test = ast.parse(guard.test, mode="eval").body
    except SyntaxError:
        return False
    scope = program.scope_of(guard.file, guard.line)
    counted = {name for each in _questions(test) for name in _counted(program, each, scope)}
    return bool(counted & {name for at in way for name in _given_on(program, at.file, at.line)})


def _questions(test: ast.expr) -> Iterator[ast.expr]:
    """Expressions that have to be more than nothing: `x` of `x`, `x > 0`, `bool(x)`, `x and y`."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for each in test.values:
            yield from _questions(each)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        bound = test.comparators[0]
        least = bound.value if isinstance(bound, ast.Constant) else None
        if (isinstance(test.ops[0], ast.Gt | ast.NotEq) and least == 0) or (
            isinstance(test.ops[0], ast.GtE) and least == 1
        ):
            yield test.left
    elif isinstance(test, ast.Call) and last_name(test.func) == "bool" and test.args:
        yield from _questions(test.args[0])
    elif isinstance(test, ast.Name | ast.Attribute | ast.Call):
        yield test


def _counted(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> set[str]:
    """Names of the containers whose length it is, through names, properties and methods; nothing of other numbers."""
    if depth > DEEPEST:
        return set()
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name == "len" and node.args:
            return {last_name(node.args[0])} - {""}
        if name in SIZES and isinstance(node.func, ast.Attribute):
            return {last_name(node.func.value)} - {""}
        return _returned(program, name, depth)
    if not isinstance(node, ast.Name | ast.Attribute):
        return set()
    bindings = program.dataflow.bound_to(node, scope)
    found = {last_name(node)} if any(_is_container(b.value) for b in bindings) else set()
    for binding in bindings:
        found |= _counted(program, binding.value, binding.scope, depth + 1)
    return found | (_returned(program, last_name(node), depth) if isinstance(node, ast.Attribute) else set())


def _returned(program: Program, name: str, depth: int) -> set[str]:
    values = program.dataflow.returns.get(name, ())
    return {each for scope, value in values for each in _counted(program, value, scope, depth + 1)}


def _is_container(node: ast.expr) -> bool:
    called = isinstance(node, ast.Call) and last_name(node.func) in CONTAINERS
    displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    return called or isinstance(node, displays)


def _given_on(program: Program, file: str, line: int) -> set[str]:
    """Names in the arguments of what the line calls."""
    arguments = (a for call in program.call_nodes_on(file, line) for a in given_to(call))
    nodes = (node for argument in arguments for node in ast.walk(argument))
    return {last_name(node) for node in nodes} - {""}
