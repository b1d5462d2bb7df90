"""Programs in which the order of a set, a hash or an address can matter, by what their sources use."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from nsadiag.source.archive import neighbours
from nsadiag.source.syntax import parse

MOST_FILES = 64
# Whatever orders or numbers things by hash or address; code that is not in the files is not known.
NAMES = frozenset({"set", "frozenset", "hash", "id", "eval", "exec", "__import__", "importlib", "runpy"})
VIEWS = ("keys", "items")
# Their own ranks agree whatever the salt is: they are tested on processes that differ in it.
TRUSTED = frozenset({"torch", "numpy", "__future__", *sys.stdlib_module_names})


def depends_on_salt(script: Path) -> bool:
    """Whether its ranks may differ by their hash salt: only where neither it nor a module of its own uses any of that they cannot."""
    wanted, seen = [script], {script}
    while wanted:
        try:
            tree = parse(text := wanted.pop().read_text())
        except (OSError, ValueError, SyntaxError):
            return True
        own = {Path(found) for found in neighbours(script, text)}
        named = {path.stem if path.stem != "__init__" else path.parent.name for path in own}
        if len(seen) > MOST_FILES or any(_may_order(node, named) for node in ast.walk(tree)):
            return True
        wanted += own - seen
        seen |= own
    return False


def _may_order(node: ast.AST, own: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in NAMES
    if isinstance(node, ast.BinOp):
        return _is_view(node.left) or _is_view(node.right)
    if isinstance(node, ast.Import):
        return any(_is_foreign(alias.name, own) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return not node.level and _is_foreign(node.module or "", own)
    return isinstance(node, (ast.Set, ast.SetComp))


def _is_view(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS


def _is_foreign(module: str, own: set[str]) -> bool:
    first, last = module.partition(".")[0], module.rpartition(".")[2]
    return first in NAMES or (first not in TRUSTED and last not in own and first not in own)
