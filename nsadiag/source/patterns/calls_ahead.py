"""Calls that follow a line in its function: those that would be made from there on."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nsadiag.evidence.records import Place
from nsadiag.source.model import SourceModel, calls_in, name_of, spans


def calls_ahead(code: SourceModel, at: Place) -> set[str]:
    """Names of the functions that are called there, below, in loops around it, and in functions of its file that are called so."""
    file = code.file(at.file)
    function = file.function_at(at.line) if file else None
    if file is None or function is None:
        return set()
    found = _called(_ahead(function.body, at.line))
    helpers = [each for each in file.functions if each.name in found]
    return found | _called(helpers)


def _called(nodes: Sequence[ast.AST]) -> set[str]:
    return {name.rpartition(".")[2] for node in nodes for call in calls_in(node) if (name := name_of(call))}


def _ahead(body: Sequence[ast.stmt], line: int) -> list[ast.AST]:
    """The statement of that line, whole if it is a loop, and those after it; not the other branch of a condition."""
    for place, statement in enumerate(body):
        if spans(statement, line):
            inner = (
                [] if isinstance(statement, ast.For | ast.AsyncFor | ast.While) else list(_blocks(statement))
            )
            within = next(
                (_ahead(block, line) for block in inner if any(spans(s, line) for s in block)), None
            )
            return [*([statement] if within is None else within), *body[place + 1 :]]
    return []


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for _, value in ast.iter_fields(statement):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield value
        elif isinstance(value, list):
            yield from (each.body for each in value if isinstance(each, ast.ExceptHandler | ast.match_case))
