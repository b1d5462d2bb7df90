"""The prior probability that a failure needs a statement: code never executed, or unrelated to the failure, goes first."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from nsadiag.experiments.rewriting.edits import Cut, Links, number
from nsadiag.experiments.rewriting.program import Program

NEVER_RUN = 0.004
TALK = 0.01  # prints, logs, the choice of a device
UNRELATED = 0.12
RELATED = 0.6
TALKS = {"print", "info", "debug", "warning", "log", "add_scalar", "flush", "write"}
JOINS = {"init_process_group", "all_reduce", "barrier", "broadcast", "backward", "all_gather", "send", "recv"}
UNWRAPS = {ast.With: 0.3, ast.Try: 0.5, ast.If: 0.5, ast.For: 0.6, ast.While: 0.7}


class Priors:
    """For one program and what is cut from it."""

    def __init__(self, program: Program, executed: set[int] | None) -> None:
        self._links = Links.of(program)
        self._related = related(self._links)
        self._executed = executed

    def of(self, _program: Program, cut: Cut) -> float:
        node = self._links.statements.get(cut.number)
        if cut.kind == "options":
            return TALK
        if self._executed is not None and cut.gone and not cut.gone & self._executed:
            return NEVER_RUN
        if node is None:
            return RELATED
        if cut.kind == "unwrap":
            return self._of_unwrap(node, cut)
        return max((self._of_statement(n) for n in cut.gone or {cut.number}), default=UNRELATED)

    def _of_unwrap(self, node: ast.stmt, cut: Cut) -> float:
        if self._executed is not None and not any(
            number(s) in self._executed for s in getattr(node, cut.detail, [])
        ):
            return 0.97  # a branch that was not taken
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            return 0.1
        if isinstance(node, ast.If) and self._executed is not None:
            rest = [s for part in ("body", "orelse") if part != cut.detail for s in getattr(node, part)]
            if not any(number(s) in self._executed for s in rest):
                return 0.15  # always taken so far as was seen
        return UNWRAPS.get(type(node), RELATED)

    def _of_statement(self, one: int) -> float:
        node = self._links.statements.get(one)
        if node is None or (self._executed is not None and one not in self._executed):
            return NEVER_RUN
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) in TALKS:
            return TALK
        if isinstance(node, ast.Assign) and _chooses_device(node.value):
            return TALK
        calls = {_called(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
        if "init_process_group" in calls:
            return 0.9
        if isinstance(node, ast.Return) and one in self._related:
            return 0.8
        if one in self._related:
            return RELATED
        return 0.3 if calls & JOINS else UNRELATED


def _chooses_device(value: ast.expr) -> bool:
    """`torch.cuda.is_available()`, `torch.device(...)`: what hangs on it falls to the default, the CPU here."""
    return any(isinstance(n, ast.Call) and _called(n) in ("is_available", "device") for n in ast.walk(value))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def related(links: Links) -> set[int]:
    """Statements that the kept ones depend on, by names and by what they stand in, transitively."""
    found: set[int] = set()
    pending = set(links.program.kept)
    while pending:
        one = pending.pop()
        if one in found or one not in links.statements:
            continue
        found.add(one)
        if isinstance(links.statements[one], ast.FunctionDef | ast.ClassDef):
            pending |= links.nested(links.statements[one])
        for outer in links.inside(links.statements[one]):
            if isinstance(outer, ast.stmt):
                pending.add(number(outer))
                if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                    pending |= _callers(links, outer)
        for key in links.used_by.get(one, ()):
            pending |= links.binders.get(key, set())
    return found


def _callers(links: Links, function: ast.stmt) -> set[int]:
    return {
        number(links.statement(use)) for key in links.bound_by[number(function)] for use in links.uses[key]
    }


def executed(program: Program, text: str, lines: set[int]) -> set[int] | None:
    """Numbers of the statements of which a line was executed; None where text and program cannot be laid side by side."""
    ours = list(_in_order(program.tree))
    theirs = list(_in_order(ast.parse(text)))
    if len(ours) != len(theirs) or any(type(a) is not type(b) for a, b in zip(ours, theirs, strict=True)):
        return None
    found = set()
    for mine, seen in zip(ours, theirs, strict=True):
        body = getattr(seen, "body", None)
        if isinstance(seen, ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first, last = body[0].lineno, seen.end_lineno or seen.lineno
        else:
            first = seen.lineno
            last = body[0].lineno - 1 if isinstance(body, list) and body else seen.end_lineno or first
        # A function that was only defined has not run.
        if lines & set(range(first, max(last, first) + 1)):
            found.add(number(mine))
    return found


def _in_order(node: ast.AST) -> Iterable[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        yield from _in_order(child)
