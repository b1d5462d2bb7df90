"""Source as a reader sees it, for those who explain an answer: expressions as text, and the lines of the rows of a table."""

from __future__ import annotations

import ast
import functools
import inspect
import sys

from nsadiag.source.syntax import parse


def text_of(value: object) -> str | None:
    """The source of an expression; None of anything else."""
    return ast.unparse(value) if isinstance(value, ast.expr) else None


@functools.cache
def row_lines(module: str) -> dict[int, int]:
    """By the identity of each row in a tuple of that module of ours, its line there."""
    loaded = sys.modules[module]
    found: dict[int, int] = {}
    for statement in parse(inspect.getsource(loaded)).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
            table = getattr(loaded, ast.unparse(statement.targets[0]), ())
            if len(table) == len(statement.value.elts):
                found |= {id(row): node.lineno for row, node in zip(table, statement.value.elts, strict=True)}
    return found
