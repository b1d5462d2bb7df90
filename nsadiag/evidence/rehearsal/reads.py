"""The names that a statement reads: a rank records their values, and the analysis asks who wrote them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

# Of a compound statement the head alone is its line's.
HEADS = {"If": ("test",), "While": ("test",), "For": ("iter",), "AsyncFor": ("iter",), "With": ("items",), "AsyncWith": ("items",),
         "Match": ("subject",), "Try": (), "TryStar": (), "FunctionDef": (), "AsyncFunctionDef": (), "ClassDef": (),
         "Import": (), "ImportFrom": (), "Global": (), "Nonlocal": ()}  # fmt: skip

ASKS, ITERATES = {"next", "anext"}, {"__next__", "__anext__"}
CATCHES_ENDS = {"StopIteration", "StopAsyncIteration", "Exception", "BaseException"}

Read = tuple[str, ...]  # `self.best` is ("self", "best")


def reads_by_line(text: bytes) -> dict[int, tuple[Read, ...]]:
    """The names and attributes that each line's statement reads. Raises SyntaxError, ValueError, RecursionError."""
    tree = ast.parse(text)
    found: dict[int, tuple[Read, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and (names := names_read(node)):
            lines = {node.lineno} | {part.lineno for part in head_of(node) if hasattr(part, "lineno")}
            for line in lines:
                found[line] = names
    return found


def handled_ends(text: bytes) -> frozenset[int]:
    """Lines on which the end of an iterator is an exception to a handler there or further out, and not the end of a loop.

    Raises SyntaxError, ValueError, RecursionError.
    """
    handled: set[int] = set()
    asks: set[int] = set()
    loops: set[int] = set()
    own: set[int] = set()  # of iterators that the user wrote, whose end is no exception to them
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Try) and any(map(_handles_ends, node.handlers)):
            handled.update(line for each in node.body for line in _lines(each))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            loops.update((*_lines(node.iter), node.target.lineno))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in ITERATES:
            own.update(_lines(node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKS:
            asks.update(_lines(node))
    return frozenset((handled | (asks - own)) - loops)


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _handles_ends(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in CATCHES_ENDS for kind in kinds)


def names_read(node: ast.stmt) -> tuple[Read, ...]:
    """The same of one statement, each once, in the order in which they stand there."""
    return tuple(dict.fromkeys(name for part in head_of(node) for name in names_in(part)))


def head_of(node: ast.stmt) -> Iterator[ast.AST]:
    """The expressions that run when the statement's own line does."""
    fields = HEADS.get(type(node).__name__)
    if fields is None:
        yield from ast.iter_child_nodes(node)
        return
    for name in fields:
        value = getattr(node, name)
        yield from value if isinstance(value, list) else [value]


def names_in(node: ast.AST) -> Iterator[Read]:
    """Names and attributes below an expression whose values it depends on."""
    if isinstance(node, ast.Lambda | ast.stmt):
        return
    if isinstance(node, ast.Name | ast.Attribute):
        name = chain_of(node)
        if name and (isinstance(node.ctx, ast.Load) or isinstance(node, ast.Attribute)):
            yield name
            return
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        targets = (part for each in node.generators for part in ast.walk(each.target))
        own = {each.id for each in targets if isinstance(each, ast.Name)}
        yield from (
            name for each in ast.iter_child_nodes(node) for name in names_in(each) if name[0] not in own
        )
        return
    for child in ast.iter_child_nodes(node):
        # What is called is no value, what its method is called on may be one.
        if isinstance(node, ast.Call) and child is node.func:
            if isinstance(child, ast.Attribute):
                yield from names_in(child.value)
            continue
        yield from names_in(child)


def chain_of(node: ast.expr) -> Read:
    """`a.b.c` as its parts; empty where it begins with something else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else ()
