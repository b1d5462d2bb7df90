"""Loops that ask for a value in memory that processes share."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.model import SourceFile, SourceModel, calls_in, name_of

MAKERS = frozenset(
    {
        "SharedMemory",
        "ShareableList",
        "Value",
        "Array",
        "RawValue",
        "RawArray",
        "mmap",
        "memmap",
        "share_memory_",
    }
)
STEPS = 4  # from the name that is asked to the call that made it


def asks_memory(code: SourceModel, at: Place) -> bool:
    """Whether the nearest loop around that line asks a name that comes of shared memory in its file."""
    file = code.file(at.file)
    loop = next(iter(file.loops_around(at.line)), None) if file else None
    if file is None or not isinstance(loop, ast.While):
        return False
    tests = [loop.test, *(node.test for node in ast.walk(loop) if isinstance(node, ast.If))]
    names = {name for test in tests for name in _names(test)}
    for _ in range(STEPS):
        values = [value for targets, value in _bindings(file) if targets & names]
        if any(name_of(call) in MAKERS for value in values for call in calls_in(value)):
            return True
        names |= {name for value in values for name in _names(value)}
    return False


def _bindings(file: SourceFile) -> Iterator[tuple[set[str], ast.AST]]:
    """Names, an attribute by its own, and the values that they get."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Assign):
            # Several names with a value each, in one statement.
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                yield from ((set(_names(name)), value) for name, value in pairs)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield set(_names(node.target)), node.value
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield set(_names(node.optional_vars)), node.context_expr


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Name) and each.id not in ("self", "cls"):
            yield each.id
