"""What the user's source says around a line: the loop it polls in, the locks that are held there, a branch on rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Literal, TypeVar

from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.sources import tree_of
from nsadiag.evidence.asking import ASKS_INSIDE, ASKS_OUTSIDE
from nsadiag.evidence.records import Place

OF_CHILDREN = re.compile(r"is_alive\(|\.ready\(|\.done\(|running\(|exitcode")
HARMLESS = {"sleep", "print", "len", "info", "debug", "warning", "range", "time", "monotonic"}
Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef
ON_RANK = re.compile(
    r"\b\w*rank\w*\b|\bis_(main|master)\w*|\bmain_process\w*|\bLOCAL_RANK\b|\bis_coordinator\b"
)


def around(cell: CellEvidence, at: Place, kinds: tuple[type[Node], ...]) -> list[Node]:
    """Statements of these kinds that hold the line, within its own function, innermost first."""
    tree = tree_of(cell, at.file)
    if tree is None:
        return []
    scope = function_at(tree, at)
    own = list(_own(scope if scope is not None else tree))
    return sorted(
        (node for node in own if isinstance(node, kinds) and _spans(node, at.line)),
        key=lambda node: -int(getattr(node, "lineno", 0)),
    )


def head(cell: CellEvidence, at: Place) -> tuple[str, int] | None:
    """Where the outermost loop around the line begins; None outside of loops."""
    nest: list[ast.For | ast.While] = around(cell, at, (ast.For, ast.While))
    return (at.file, nest[-1].lineno) if nest else None


def function_at(tree: ast.Module, at: Place) -> Function | None:
    """The innermost function that holds the line."""
    found = [n for n in ast.walk(tree) if isinstance(n, Function) and _spans(n, at.line)]
    return max(found, key=lambda node: node.lineno, default=None)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield child
            yield from _own(child)


def _spans(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return bool(first <= line <= last)


def polled(cell: CellEvidence, at: Place) -> tuple[ast.While | ast.For, str] | None:
    """The loop around a nap, and the text of all that it asks, with that of the functions it calls in the same file."""
    loops: list[ast.While | ast.For] = around(cell, at, (ast.While, ast.For))
    tree = tree_of(cell, at.file)
    if not loops or tree is None:
        return None
    loop = loops[0]
    called = {name_of(n.func) for n in ast.walk(loop) if isinstance(n, ast.Call)}
    bodies = [n for n in ast.walk(tree) if isinstance(n, Function) and n.name in called]
    return loop, "\n".join(map(ast.unparse, [loop, *bodies]))


def asks(
    cell: CellEvidence, at: Place, *, has_children: bool
) -> tuple[Literal["outside", "inside"], str] | None:
    """Whom a loop asks that naps between two questions, the world or its own process; and its condition, as written."""
    found = polled(cell, at)
    if found is None:
        return None
    loop, text = found
    children = has_children and OF_CHILDREN.search(text)
    if (ASKS_OUTSIDE.search(text) or children) and not (ASKS_INSIDE.search(text) and not children):
        return "outside", condition(loop)
    calls = {name_of(n.func) for n in ast.walk(loop) if isinstance(n, ast.Call)}
    if (
        ASKS_INSIDE.search(text)
        or OF_CHILDREN.search(text)
        or (isinstance(loop, ast.While) and calls <= HARMLESS)
    ):
        return "inside", condition(loop)
    return None


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def held(cell: CellEvidence, at: Place) -> set[str]:
    """What the `with` statements around the line hold, as they are written; at its own line one still asks for it."""
    statements = [
        s for s in around(cell, at, (ast.With,)) if at.line > s.lineno or s.body[0].lineno == at.line
    ]
    return {ast.unparse(item.context_expr) for node in statements for item in node.items}


def wanted(cell: CellEvidence, at: Place) -> set[str]:
    """What the statement at the line takes: `with lock:` or `lock.acquire()`."""
    tree = tree_of(cell, at.file)
    found = set()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.With) and node.lineno == at.line:
            found |= {ast.unparse(item.context_expr) for item in node.items}
        if isinstance(node, ast.Call) and node.lineno == at.line and isinstance(node.func, ast.Attribute):
            found |= {ast.unparse(node.func.value)} if node.func.attr == "acquire" else set()
    return found


def on_rank(cell: CellEvidence, frames: tuple[Place, ...]) -> bool:
    """Whether any of these lines stands under an `if` that asks for the rank."""
    return any(
        ON_RANK.search(ast.unparse(node.test)) for at in frames for node in around(cell, at, (ast.If,))
    )


def condition(loop: ast.While | ast.For) -> str:
    """What the loop asks, in one line."""
    text = ast.unparse(loop.test) if isinstance(loop, ast.While) else ast.unparse(loop.iter)
    if text == "True":
        leaves = [n for n in ast.walk(loop) if isinstance(n, ast.If) and _leaves(n)]
        text = ast.unparse(leaves[0].test) if leaves else text
    return text.splitlines()[0][:120]


def _leaves(node: ast.If) -> bool:
    return any(isinstance(n, ast.Break | ast.Return) for n in ast.walk(node))
