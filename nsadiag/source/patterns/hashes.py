"""Uses of hashes, which Python salts anew in every process: of a text on a rank, and any that its order or number may come from."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from nsadiag.evidence.documents.files import read_text
from nsadiag.evidence.records import Place
from nsadiag.source.archive import neighbours
from nsadiag.source.control import Program
from nsadiag.source.model import Function, Scope, SourceModel, last_name, name_of
from nsadiag.source.syntax import parse

# What gives a text, whatever it is given; numbers have one hash everywhere.
GIVES_TEXT = re.compile(
    r"^(str|format|join|lower|upper|strip|[lr]strip|replace|basename|dirname|splitext|abspath|hexdigest|read_text|decode)$"
)
IS_TEXT = re.compile(r"^(\w+_)?(name|stem|path|filename|url|uri|text|word|title)$")
MOST_FILES = 64
# Whatever orders or numbers things by hash or address; code that is not in the files is not known.
NAMES = frozenset({"set", "frozenset", "hash", "id", "eval", "exec", "__import__", "importlib", "runpy"})
VIEWS = ("keys", "items")
# Their own ranks agree whatever the salt is: they are tested on processes that differ in it.
TRUSTED = frozenset({"torch", "numpy", "__future__", *sys.stdlib_module_names})


def text_hash_on_rank(code: SourceModel) -> Place | None:
    """The line of a hash of a text that is compared with the rank, as a remainder mostly."""
    files = {file.path: file for file in code.kept}
    if not any(name_of(call) == "hash" for file in files.values() for call in file.calls):
        return None
    program = Program(files)
    for scope, call in program.dataflow.calls.get("hash", ()):
        plain = isinstance(call.func, ast.Name) and len(call.args) == 1
        if plain and _is_text(call.args[0]) and _is_compared(call, scope, program):
            return scope.place(call.lineno)
    return None


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_text(node.value)
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.Call):
        return bool(GIVES_TEXT.search(name_of(node)))
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or isinstance(node, ast.JoinedStr) or bool(IS_TEXT.search(last_name(node)))


def _is_compared(value: ast.expr, scope: Scope, program: Program, *, depth: int = 3) -> bool:
    """Whether what is made of it, directly, by a name, or as what a function of the user's returns, is compared with the rank."""
    dataflow, parents = program.dataflow, program.parents
    node: ast.AST = value
    above = parents.get(node)
    while isinstance(above, ast.expr):
        if isinstance(above, ast.Compare):
            sides = [above.left, *above.comparators]
            return any(side is not node and dataflow.of(side, scope) == "rank" for side in sides)
        node, above = above, parents.get(above)
    if not depth:
        return False
    if isinstance(above, ast.Return):
        uses: list[tuple[Scope, ast.expr]] = list(dataflow.calls_of(scope.function))
    elif isinstance(above, ast.Assign) and len(above.targets) == 1 and isinstance(above.targets[0], ast.Name):
        uses = [(scope, name) for name in _loads(above.targets[0].id, above, parents)]
    else:
        return False
    return any(_is_compared(use, where, program, depth=depth - 1) for where, use in uses)


def _loads(name: str, node: ast.AST, parents: dict[ast.AST, ast.AST]) -> list[ast.Name]:
    """Reads of the name in the function around."""
    while node in parents and not isinstance(node, Function):
        node = parents[node]
    return [
        n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]


def depends_on_salt(script: Path) -> bool:
    """Whether its ranks may differ by their hash salt: only where neither it nor a module of its own uses any of that they cannot."""
    wanted, seen = [script], {script}
    while wanted:
        try:
            tree = parse(text := read_text(wanted.pop()))
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
