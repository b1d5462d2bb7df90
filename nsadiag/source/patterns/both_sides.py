"""Two branches of one condition that make the same call: ranks that took either part further in, if they do."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable

from nsadiag.evidence.records import Place
from nsadiag.source.control import Program
from nsadiag.source.model import last_name

# What may stand between the branch and the call: such blocks are gone through once, whoever is in them.
ONCE = ast.With | ast.AsyncWith | ast.Try


def make_the_same_call(program: Program, one: Place, other: Place, function: str) -> bool:
    """Whether the two lines are in opposite branches of one `if`, and each calls `function` with the same arguments.

    By their text, none of whose names either branch gives a value: `train(model)` beside `with profiler: train(model)`.
    """
    branch = _opposite(program.path_to(one.file, one.line), program.path_to(other.file, other.line))
    if branch is None:
        return False
    calls = [_calls_of(program, at, function) for at in (one, other)]
    texts = [{ast.unparse(call) for call in each} for each in calls]
    return bool(texts[0]) and texts[0] == texts[1] and not _names(calls[0]) & _set_in(branch)


def _opposite(one: list[ast.AST], other: list[ast.AST]) -> ast.If | None:
    """The `if` whose body leads to the one line and whose `else` to the other, each through nothing that may skip it or repeat it."""
    common = [
        a for a, b in itertools.takewhile(lambda both: both[0] is both[1], zip(one, other, strict=False))
    ]
    branch, depth = (common[-1] if common else None), len(common)
    if not isinstance(branch, ast.If) or depth >= min(len(one), len(other)):
        return None
    if (one[depth] in branch.body) == (other[depth] in branch.body):
        return None
    return branch if all(isinstance(n, ONCE) for n in (*one[depth:-1], *other[depth:-1])) else None


def _calls_of(program: Program, at: Place, function: str) -> list[ast.Call]:
    return [c for c in program.call_nodes_on(at.file, at.line) if last_name(c.func) == function]


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def _set_in(branch: ast.If) -> set[str]:
    """Names to which something is given there, themselves or what they hold."""
    targets = (
        n
        for n in ast.walk(branch)
        if isinstance(n, ast.Name | ast.Attribute | ast.Subscript) and isinstance(n.ctx, ast.Store | ast.Del)
    )
    return _names(targets)
