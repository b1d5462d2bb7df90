"""Uses of the buffer that an asynchronous collective fills, before anybody has waited for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.source.model import SourceFile, calls_in, name_of, names_in, spans

# Of these the first argument is filled; what others are given may be read meanwhile.
FILL = frozenset({"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"})
# These look at no element.
VIEWS = frozenset(
    {"view", "view_as", "reshape", "flatten", "narrow", "split", "chunk", "unflatten", "squeeze", "unsqueeze", "t", "detach"}
)  # fmt: skip
FACTS = VIEWS | {
    "size", "dim", "numel", "nelement", "element_size", "data_ptr", "stride", "is_contiguous", "storage",
    "untyped_storage", "record_stream", "get_device",
}  # fmt: skip
WAITS = frozenset(
    {"wait", "wait_all", "waitall", "synchronize", "wait_stream", "wait_event", "result", "value", "then",
     "get_future", "is_completed", "block_current_stream", "barrier", "join"}
)  # fmt: skip
KEEPS = frozenset({"append", "appendleft", "add", "put", "extend", "insert", "setdefault"})
SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)


def used_after(file: SourceFile, line: int) -> Iterator[tuple[int, str]]:
    """The line that uses what the asynchronous collective of that line fills, and how that is written."""
    for body in _bodies(file):
        for number, statement in enumerate(body):
            if isinstance(statement, SIMPLE) and spans(statement, line):
                filled = next((f for call in calls_in(statement) if (f := _filled(call, line))), None)
                used = _first_use(body[number + 1 :], filled, _handle(statement)) if filled else None
                if filled and used:
                    yield used, filled


def _bodies(file: SourceFile) -> Iterator[list[ast.stmt]]:
    for node in file.nodes:
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                yield body


def _filled(call: ast.Call, line: int) -> str | None:
    """The buffer that the collective of that line fills, if it is an asynchronous one."""
    is_async = any(
        k.arg == "async_op" and isinstance(k.value, ast.Constant) and k.value.value for k in call.keywords
    )
    here = call.lineno <= line <= (call.end_lineno or call.lineno)
    if not (is_async and here and call.args and name_of(call) in FILL):
        return None
    first = call.args[0]
    return ast.unparse(first) if isinstance(first, ast.Name | ast.Attribute) else None


def _handle(statement: ast.stmt) -> str | None:
    """The name of the collective's handle, where it has one."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _first_use(after: list[ast.stmt], filled: str, handle: str | None) -> int | None:
    """The line of the first statement that uses it; None where somebody may have waited by then, or it is another."""
    for statement in after:
        mentioned = {ast.unparse(n) for n in ast.walk(statement) if isinstance(n, ast.Name | ast.Attribute)}
        if not isinstance(statement, SIMPLE):
            if mentioned & {filled, handle} or any(_may_wait(call, handle) for call in calls_in(statement)):
                return None
            continue
        if any(_may_wait(call, handle) for call in calls_in(statement)):
            return None
        if any(_uses(node, filled) for node in ast.walk(statement)):
            return statement.lineno
        if _rebinds(statement, filled):
            return None
    return None


def _may_wait(call: ast.Call, handle: str | None) -> bool:
    """Whether it waits for something, or is handed the collective to do so."""
    name = name_of(call)
    return name in WAITS or (handle in names_in(*call.args) and name not in KEEPS)


def _uses(node: ast.AST, filled: str) -> bool:
    """Whether an operation looks at its elements, or writes to them: not one that only keeps or measures it."""
    if isinstance(node, ast.BinOp):
        return _is(node.left, filled) or _is(node.right, filled)
    if isinstance(node, ast.AugAssign):
        return _is(node.value, filled) or _is(node.target, filled)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if _is(node.func.value, filled):
        return node.func.attr not in FACTS
    # `p.grad.copy_(buffer)`: what is named so works on tensors.
    in_place = node.func.attr.endswith("_") and not node.func.attr.endswith("__")
    return in_place and any(_is(each, filled) for each in node.args)


def _is(node: ast.expr, filled: str) -> bool:
    """Whether it is the buffer, or a view of it."""
    if isinstance(node, ast.Subscript):
        return _is(node.value, filled)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
        return _is(node.func.value, filled)
    return ast.unparse(node) == filled


def _rebinds(statement: ast.stmt, filled: str) -> bool:
    """Whether the name, or what it is an attribute of, is another from then on."""
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    names = {ast.unparse(n) for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name | ast.Attribute)}  # fmt: skip
    return any(filled == name or filled.startswith(f"{name}.") for name in names)
