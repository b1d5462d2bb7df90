"""The line that orders the collection of a loop, possibly differently on each rank."""

from __future__ import annotations

import ast

from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import names_in

# What leaves a list in an order that may be another on each rank; by names alone all ranks sort alike.
ORDERS = ("sort", "sorted", "shuffle", "sample", "set")
KEYED = ("sort", "sorted")


def ordered_at(program: Program, loop: Condition) -> Place:
    """The line above the loop that sorts or shuffles what it goes over by something else than its names; else the loop."""
    statement = program.for_at(loop)
    over = names_in(statement.iter) if statement else set()
    scope = program.scope_of(loop.file, loop.line)
    lines = {
        call.lineno
        for name in ORDERS
        for where, call in program.dataflow.calls.get(name, ())
        if where == scope and call.lineno < loop.line and _orders(program, where.file, call, name, over)
    }
    return scope.place(lines.pop()) if len(lines) == 1 else loop.place


def _orders(program: Program, file: str, call: ast.Call, name: str, over: set[str]) -> bool:
    """Whether the call leaves one of these names in an order of its own."""
    if name in KEYED and not any(keyword.arg == "key" for keyword in call.keywords):
        return False
    if name == "sort":
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        return isinstance(owner, ast.Name) and owner.id in over
    if name == "shuffle":
        return any(isinstance(a, ast.Name) and a.id in over for a in call.args)
    path = program.path_to(file, call.lineno)
    targets = path[-1].targets if path and isinstance(path[-1], ast.Assign) else []
    return any(isinstance(t, ast.Name) and t.id in over for t in targets)
