"""Parts of a source text that need no model of it: docstrings, imports, tables and calls of literals."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Collection, Mapping
from typing import Any

from nsadiag.source.syntax import parse


def docstring_of(text: str) -> str:
    """The docstring of a module, empty if it has none: read up to there alone, a tenth of the time of parsing it all."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            return inspect.cleandoc(ast.literal_eval(token.string))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            break
    return ""


def imported_by(text: str) -> dict[str, str]:
    """The module from which each name comes that a module imports at its top. Raises SyntaxError."""
    imports = [node for node in parse(text).body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def table_of(text: str, *names: str) -> dict[str, str]:
    """By key, the name that each entry of these dict literals has for its value. Raises SyntaxError."""
    assigned = [node for node in parse(text).body if isinstance(node, ast.AnnAssign)]
    tables = [a.value for a in assigned if isinstance(a.value, ast.Dict) and ast.unparse(a.target) in names]
    return {
        str(key.value): value.id
        for table in tables
        for key, value in zip(table.keys, table.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Name)
    }


def docstring_of_function(text: str, name: str) -> str:
    """The docstring of a function of a module. Raises SyntaxError, StopIteration where there is none of that name."""
    functions = (node for node in parse(text).body if isinstance(node, ast.FunctionDef))
    return ast.get_docstring(next(each for each in functions if each.name == name)) or ""


def keywords_of(call: str, wanted: Collection[str]) -> Mapping[str, Any]:
    """Keyword arguments of a call, which are literals. Raises SyntaxError, ValueError for another kind of value."""
    return _keywords(ast.parse(call, mode="eval").body, wanted)


def rows_of(call: str, wanted: Collection[str]) -> list[Mapping[str, Any]]:
    """The same of each call that is an argument of it, as in a table of rows."""
    return [_keywords(each, wanted) for each in _arguments(call)]


def firsts_of(call: str) -> Mapping[str, Any]:
    """By its key, which is a name, the first of each tuple in a dict that is an argument of a call."""
    tables = [each for each in _arguments(call) if isinstance(each, ast.Dict)]
    rows = [row for table in tables for row in zip(table.keys, table.values, strict=True)]
    return {
        key.id: ast.literal_eval(value.elts[0])
        for key, value in rows
        if isinstance(key, ast.Name) and isinstance(value, ast.Tuple)
    }


def _arguments(call: str) -> list[ast.expr]:
    node = ast.parse(call, mode="eval").body
    return node.args if isinstance(node, ast.Call) else []


def _keywords(node: ast.expr, wanted: Collection[str]) -> Mapping[str, Any]:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    return {str(each.arg): ast.literal_eval(each.value) for each in keywords if each.arg in wanted}
