"""Trip counts of loops, as far as the source gives them."""

from __future__ import annotations

import ast

from nsadiag.source.control import Condition, Program
from nsadiag.source.model import Scope, name_of

DEEPEST = 4  # names that stand for one another


def trip_count(program: Program, loop: Condition) -> int | None:
    """The number in `for ... in range(number)`, if it is the same wherever it may come from."""
    call = _iterated(program, loop)
    plain = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
    if not plain or len(call.args) != 1:  # type: ignore[union-attr]
        return None
    found = _numbers(program, call.args[0], program.scope_of(loop.file, loop.line))  # type: ignore[union-attr]
    return found.pop() if len(found) == 1 else None


def counts_from_same_start(loop: Condition) -> bool:
    """Whether what counts the rounds begins at the same number on all ranks; of other counters their origin tells."""
    test = ast.parse(loop.test, mode="eval").body
    counts = isinstance(test, ast.Call) and name_of(test) == "enumerate"
    return loop.provenance != "data" or not counts or len(test.args) + len(test.keywords) == 1  # type: ignore[attr-defined]


def _iterated(program: Program, loop: Condition) -> ast.expr | None:
    statement = program.for_at(loop)
    return statement.iter if statement else None


def _numbers(program: Program, value: ast.expr, scope: Scope, depth: int = 0) -> set[int | None]:
    """All that the value may be; None among them for what only the run knows."""
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return {value.value}
    found: set[int | None] = set()
    if depth < DEEPEST and isinstance(value, ast.Name | ast.Attribute):
        default = _default(program, value.id, scope) if isinstance(value, ast.Name) else None
        if default is not None:
            found |= _numbers(program, default, scope, depth + 1)
        for binding in program.dataflow.bound_to(value, scope):
            found |= _numbers(program, binding.value, binding.scope, depth + 1)
    return found or {None}


def _default(program: Program, name: str, scope: Scope) -> ast.expr | None:
    """The default of the parameter of that name."""
    for where, function in program.dataflow.functions.get(scope.function, ()):
        if where != scope:
            continue
        args = [*function.args.posonlyargs, *function.args.args]
        named = [*zip(args[::-1], function.args.defaults[::-1], strict=False)]
        named += [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d]  # fmt: skip
        return next((default for arg, default in named if arg.arg == name), None)
    return None
