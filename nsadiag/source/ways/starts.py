"""Expressions of a line from which a way back may begin."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.control import Condition, Program
from nsadiag.source.model import Loop, given_to

LEAVES = ast.Return | ast.Break | ast.Raise


def given_on(program: Program, at: Place) -> Iterator[ast.expr]:
    """The arguments of all calls on the line."""
    return (each for call in program.call_nodes_on(at.file, at.line) for each in given_to(call))


def iterated_on(program: Program, at: Place) -> Iterator[ast.expr]:
    """The inputs of the comprehensions of a simple statement: `jobs` of `done = [job() for job in jobs]`."""
    statement = next(iter(program.path_to(at.file, at.line)[-1:]), None)
    parts = ast.walk(statement) if isinstance(statement, ast.Assign | ast.Expr | ast.Return) else ()
    return (each.iter for each in parts if isinstance(each, ast.comprehension))


def computed_on(program: Program, at: Place) -> Iterator[ast.expr]:
    """The callees of the line that are themselves looked up: `METHODS[kind](x)`, `getattr(self, kind)(x)`."""
    calls = program.call_nodes_on(at.file, at.line)
    return (call.func for call in calls if isinstance(call.func, ast.Call | ast.Subscript))


def another_round(program: Program, loop: Condition) -> Condition | None:
    """The one handler by which a loop goes on that is left once its body succeeds."""
    node = next(iter(program.path_to(loop.file, loop.line)[-1:]), None)
    tries = [each for each in node.body if isinstance(each, ast.Try)] if isinstance(node, Loop) else []
    leaves = [isinstance(each.body[-1], ast.Return | ast.Break) for each in tries]
    handlers = [h for each in tries for h in each.handlers if not isinstance(h.body[-1], LEAVES)]
    if leaves != [True] or len(handlers) != 1:
        return None
    return program.handler(loop.file, handlers[0], handlers[0].type)
