"""Conduct that no patch may agree by, read from its text: an error swallowed, a sleep, an early leave, work left out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator

from nsadiag.repair.change import Change, FileChange
from nsadiag.repair.proof import Shown
from nsadiag.source.model import last_name, name_of
from nsadiag.source.syntax import parse
from nsadiag.source.vocabulary import ENDS_PROCESS

# Agreements by which a rank's own yes may become a no.
NOT_ANY = re.compile(
    r"\b(?:broadcast|scatter)\w*\(|\bReduceOp\.(?!MAX\b)|\ball_reduce\((?!.*ReduceOp)|\bgather\w*\(|\ball_gather\w*\("
)
AGREES = re.compile(r"\b(?:broadcast|scatter|all_reduce|gather|all_gather)\w*\(")
BRANCHES = (ast.If, ast.IfExp)
LEAVES = (ast.Break, ast.Return, ast.Continue, ast.Raise)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def conduct(change: Change) -> Shown:
    """The row of the proof: the text adds none of these."""
    for file in change.files:
        if not file.path.endswith(".py"):
            continue
        try:
            before, after = parse(file.before), parse(file.after)
        except (SyntaxError, ValueError, RecursionError):
            return Shown(criterion="conduct", met=False, because=f"{file.path} is no Python with the patch")
        for what, found in WAYS:
            if new := Counter(found(after)) - Counter(found(before)):
                return Shown(criterion="conduct", met=False, because=f"{file.path} {what}: {min(new)}")
        if line := _decides_for_others(file, before, after):
            because = f"{file.path}:{line}: a rank is kept out of a side that it would have taken"
            return Shown(criterion="conduct", met=False, because=because)
        if early := _leaves_early(file, before, after):
            return Shown(criterion="conduct", met=False, because=f"{file.path} leaves early: {early}")
    return Shown(criterion="conduct", met=True, because="no error swallowed, no sleep, no early leave")


def _swallows(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and not any(isinstance(n, ast.Raise) for n in ast.walk(node)):
            yield f"except {ast.unparse(node.type) if node.type else ''}".rstrip()
        elif isinstance(node, ast.Call) and name_of(node) == "suppress":
            yield ast.unparse(node)


def _sleeps(tree: ast.Module) -> Iterator[str]:
    return (ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Call) and name_of(n) == "sleep")


def _ends(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in ENDS_PROCESS | {
            "destroy_process_group",
            "abort",
        }:
            yield ast.unparse(node)


WAYS: tuple[tuple[str, Callable[[ast.Module], Iterator[str]]], ...] = (
    ("swallows an error", _swallows), ("sleeps", _sleeps), ("ends the process or its group", _ends),
)  # fmt: skip


def _decides_for_others(file: FileChange, before: ast.Module, after: ast.Module) -> int:
    """The line of a branch whose new condition keeps a rank out of a side that it would have taken; 0 where none does.

    What it would have done there shows in no rehearsal of the failed job. Any rank's yes keeps no rank out of a branch that has
    no other side; where the branch leaves a loop or a function, nothing in it is left out.
    """
    rows = file.after.splitlines()
    asks = any(AGREES.search(rows[line - 1]) for line in file.added)
    keeps_out = any(NOT_ANY.search(rows[line - 1]) for line in file.added)
    old = {ast.unparse(node.test) for node in ast.walk(before) if isinstance(node, BRANCHES)}
    known = {node.name for node in ast.walk(before) if isinstance(node, FUNCTIONS)}
    new = [n for n in ast.walk(after) if isinstance(n, FUNCTIONS) and n.name not in known]
    for node in ast.walk(after):
        if (
            not isinstance(node, BRANCHES)
            or node.test.lineno not in file.added
            or ast.unparse(node.test) in old
        ):
            continue
        if any(f.lineno <= node.lineno <= (f.end_lineno or 0) for f in new):
            continue
        two_sided = isinstance(node, ast.IfExp) or bool(node.orelse)
        leaves = isinstance(node, ast.If) and any(isinstance(s, LEAVES) for s in node.body)
        if (two_sided and asks) or (keeps_out and not leaves):
            return node.test.lineno
    return 0


def _leaves_early(file: FileChange, before: ast.Module, after: ast.Module) -> str:
    """A new `return`, `break` or `continue` in a function that was there; what a new function does, its callers see."""
    old = {node.name for node in ast.walk(before) if isinstance(node, FUNCTIONS)}
    new = Counter(_leaves(after, old)) - Counter(_leaves(before, old))
    return min(new, default="")


def _leaves(tree: ast.Module, functions: set[str]) -> Iterator[str]:
    pending: list[tuple[ast.AST, str]] = [(tree, "the module")]
    while pending:
        node, where = pending.pop()
        if isinstance(node, FUNCTIONS):
            if node.name not in functions:
                continue
            where = node.name
        if isinstance(node, ast.Return | ast.Break | ast.Continue):
            yield f"{type(node).__name__.lower()} in {where}"
        pending += [(child, where) for child in ast.iter_child_nodes(node)]
