"""The condition that decides a gradient-sync switch, through names, parameters and helpers."""

from __future__ import annotations

import ast

from nsadiag.evidence.records import Place
from nsadiag.source.control import Program
from nsadiag.source.model import Scope, last_name

SWITCH = "set_requires_gradient_sync"
DEEPEST = 6


def switched_by(program: Program, at: Place) -> Place | None:
    """The line that decides what the switch on that line is given; None where that is not certain, or alike on all ranks."""
    calls = [c for c in program.call_nodes_on(at.file, at.line) if last_name(c.func) == SWITCH]
    given = [v for c in calls for v in (*c.args[:1], *(k.value for k in c.keywords if k.arg == "requires_gradient_sync"))]  # fmt: skip
    return _asked(program, given[0], program.scope_of(at.file, at.line)) if len(given) == 1 else None


def entered_by(program: Program, at: Place) -> Place | None:
    """The line that chooses what `with name:` on that line enters: `name = no_sync() if last else nullcontext()`, or an `if` around both."""
    statement = next(iter(program.path_to(at.file, at.line)[-1:]), None)
    names = [i.context_expr for i in statement.items if isinstance(i.context_expr, ast.Name)] if isinstance(statement, ast.With) else []  # fmt: skip
    scope = program.scope_of(at.file, at.line)
    bound = [
        b
        for name in names
        for b in program.dataflow.values_of(name, scope)
        if b.scope == scope and b.value.lineno < at.line
    ]
    if len(bound) == 1 and isinstance(bound[0].value, ast.IfExp):
        test = bound[0].value.test
        return _asked(program, test, scope) or scope.place(test.lineno)
    branches = [{(g.line, g.kind) for g in program.around(at.file, b.value.lineno)} for b in bound]
    here = {(g.line, g.kind) for g in program.around(at.file, at.line)}
    common = set.intersection(*branches) - here if len(branches) > 1 else set()
    lines = [line for line, kind in common if kind == "if"]
    return scope.place(max(lines)) if lines else None


def _asked(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> Place | None:
    if isinstance(node, ast.Compare | ast.BoolOp):
        differs = program.dataflow.of(node, scope) != "uniform"
        return scope.place(node.lineno) if differs else None
    behind: list[tuple[Scope, ast.expr]] = []
    if isinstance(node, ast.UnaryOp):
        behind = [(scope, node.operand)]
    elif isinstance(node, ast.Call):
        name = last_name(node.func)
        behind = [(scope, a) for a in node.args] if name == "bool" else program.dataflow.returns.get(name, [])
    elif isinstance(node, ast.Name | ast.Attribute):
        values = program.dataflow.values_of(node, scope)
        # What it is set to without a question is where it starts from.
        behind = [(b.scope, b.value) for b in values if not isinstance(b.value, ast.Constant)]
    if len(behind) != 1 or depth >= DEEPEST:
        return None
    where, value = behind[0]
    return _asked(program, value, where, depth + 1)
