"""Uses of `hash()` of a text, which Python salts anew in every process."""

from __future__ import annotations

import ast
import re

from nsadiag.evidence.records import Place
from nsadiag.source.control import Program
from nsadiag.source.model import Function, Scope, SourceModel, last_name, name_of

# What gives a text, whatever it is given; numbers have one hash everywhere.
GIVES_TEXT = re.compile(
    r"^(str|format|join|lower|upper|strip|[lr]strip|replace|basename|dirname|splitext|abspath|hexdigest|read_text|decode)$"
)
IS_TEXT = re.compile(r"^(\w+_)?(name|stem|path|filename|url|uri|text|word|title)$")


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
