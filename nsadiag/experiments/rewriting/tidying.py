"""Cuts that leave what a program does as it is: a function called once, a value used once."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from typing import Any

from nsadiag.experiments.rewriting.edits import Cut, Links, number
from nsadiag.experiments.rewriting.program import Program


def inlined_calls(program: Program) -> Iterator[Cut]:
    """`def main(): ...` and its only call `main()` become what it does."""
    links = Links.of(program)
    for function in program.tree.body:
        if not isinstance(function, ast.FunctionDef) or function.decorator_list or _has_parameters(function):
            continue
        uses = [use for key in links.bound_by[number(function)] for use in links.uses[key]]
        call = links.parents.get(uses[0]) if len(uses) == 1 else None
        statement = links.parents.get(call) if isinstance(call, ast.Call) and call.func is uses[0] else None
        if not isinstance(statement, ast.Expr) or _cannot_move(function):
            continue
        edits = {
            number(function): frozenset({("delete",)}),
            number(statement): frozenset({("replace", tuple(copy.deepcopy(function.body)))}),
        }
        yield Cut(kind="call", number=number(function), detail="", edits=edits, gone=frozenset())


def _has_parameters(function: ast.FunctionDef) -> bool:
    given = function.args
    return bool(given.args or given.kwonlyargs or given.posonlyargs or given.vararg or given.kwarg)


def _cannot_move(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(n, ast.Return | ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal)
        for n in ast.walk(function)
    )


def inlined_values(program: Program) -> Iterator[Cut]:
    """`x = f()` before the only statement that reads x: `f()` is written there."""
    links = Links.of(program)
    for statement in links.statements.values():
        if not isinstance(statement, ast.Assign) or number(statement) in program.kept:
            continue
        keys = links.bound_by[number(statement)]
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name) or len(keys) != 1:
            continue
        key = next(iter(keys))
        uses = links.uses.get(key, [])
        if len(uses) != 1 or links.binders[key] != {number(statement)}:
            continue
        reader = links.statement(uses[0])
        if hasattr(reader, "verbatim") or not _follows(links, statement, reader):
            continue
        edits = {
            number(statement): frozenset({("delete",)}),
            number(uses[0]): frozenset({("replace", copy.deepcopy(statement.value))}),
        }
        yield Cut(kind="value", number=number(statement), detail="", edits=edits, gone=frozenset())


def _follows(links: Links, first: ast.stmt, second: ast.stmt) -> bool:
    """Whether `second` is the very next statement."""
    outer = links.parents.get(first)
    for name in ("body", "orelse", "finalbody"):
        body = getattr(outer, name, None)
        if isinstance(body, list) and first in body and second in body:
            return body.index(second) == body.index(first) + 1 and not isinstance(second, ast.While | ast.For)
    return False


def literal_options(program: Program, options: Mapping[str, Any]) -> Iterator[Cut]:
    """`options = parser.parse_args()` and each `options.name`: the values that it was run with instead."""
    links = Links.of(program)
    for statement in links.statements.values():
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr != "parse_args" or number(statement) in program.kept:
            continue
        reads = [links.parents[use] for key in links.bound_by[number(statement)] for use in links.uses[key]]
        if not all(isinstance(r, ast.Attribute) and r.attr in options for r in reads):
            continue
        edits: dict[int, frozenset[tuple[Any, ...]]] = {number(statement): frozenset({("delete",)})}
        for read in reads:
            value = ast.parse(repr(options[read.attr]), mode="eval").body  # type: ignore[attr-defined]
            for part in ast.walk(value):
                part.number = number(read)  # type: ignore[attr-defined]
            edits[number(read)] = frozenset({("replace", value)})
        yield Cut(kind="options", number=number(statement), detail="", edits=edits, gone=frozenset())
