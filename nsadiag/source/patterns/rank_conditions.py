"""Lines of the user's sources that treat one rank otherwise: writes under a condition on the rank, and settings made of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.model import SourceModel, last_name, name_of, only
from nsadiag.source.vocabulary import is_rank_call, is_rank_variable

# Methods without an underscore at their end that write into tensors, too.
WRITES = frozenset({"load_state_dict", "reset_parameters", "set_", "update_parameters"})
NOT_WRITES = frozenset({"__init__", "requires_grad_"})


def write_on_one_rank(code: SourceModel) -> Place | None:
    """The only statement under a condition on the rank that writes into tensors; None where there is none, or several."""
    return only(_under_rank(code, _writes))


def frozen_on_one_rank(code: SourceModel) -> Place | None:
    """The same of a statement that decides whether parameters are trained."""
    return only(_under_rank(code, _freezes))


def _under_rank(code: SourceModel, holds: Callable[[ast.stmt], bool]) -> Iterator[tuple[str, int]]:
    """Statements without a body of their own, however deep under a condition on the rank, of which that is true."""
    for file in code.kept:
        for branch in (each for each in file.all(ast.If) if depends_on_rank(each.test)):
            for node in (n for each in (*branch.body, *branch.orelse) for n in ast.walk(each)):
                if isinstance(node, ast.stmt) and not hasattr(node, "body") and holds(node):
                    yield file.path, node.lineno


def _freezes(statement: ast.stmt) -> bool:
    return any(last_name(n).startswith("requires_grad") for n in ast.walk(statement))


def setting_of_rank(code: SourceModel, setting: str) -> Place | None:
    """The only line that gives a setting (`lr`, `weight_decay`) a value made of the rank: where it is handed over, or computed."""
    return only(_settings(code, setting))


def _settings(code: SourceModel, setting: str) -> Iterator[tuple[str, int]]:
    for file in code.kept:
        given = [k.value for call in file.calls for k in call.keywords if k.arg == setting]
        names = {value.id for value in given if isinstance(value, ast.Name)}
        yield from ((file.path, value.lineno) for value in given if depends_on_rank(value))
        for node in file.all(ast.Assign):
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if targets & names and depends_on_rank(node.value):
                yield file.path, node.lineno


def depends_on_rank(expression: ast.AST) -> bool:
    """Whether something in it is named after the rank: a value, a call, or a variable of the environment."""
    return any(_is_rank(node) for node in ast.walk(expression))


def _is_rank(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and is_rank_variable(node.value)
    return is_rank_call(last_name(node))


def _writes(statement: ast.stmt) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AugAssign) else targets
    if any(last_name(part) in ("data", "grad") for target in targets for part in ast.walk(target)):
        return True
    called = {name_of(call) for call in ast.walk(statement) if isinstance(call, ast.Call)} - NOT_WRITES
    return any(name in WRITES or (name.endswith("_") and not name.startswith("__")) for name in called)
