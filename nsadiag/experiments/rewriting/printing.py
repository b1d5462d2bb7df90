"""A program's tree as source, laid out simply; statements that must stay are printed as they were written."""

from __future__ import annotations

import ast
import copy
import io
import textwrap
import tokenize
from collections.abc import Iterator
from typing import Any

DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def printed(tree: ast.Module) -> str:
    """The source, laid out simply; kept statements as they were written."""
    lines = list(_block(tree.body, 0))
    return "\n".join(lines).strip("\n") + "\n"


def _block(body: list[ast.stmt], depth: int) -> Iterator[str]:
    previous: ast.stmt | None = None
    for node in body:
        if previous is not None and depth == 0 and (_is_apart(previous) or _is_apart(node)):
            yield from ("", "")
        elif (previous is not None and depth == 0 and _is_import(previous) and not _is_import(node)) or (
            previous is not None and isinstance(node, DEFINES) and depth
        ):
            yield ""
        yield from _statement(node, depth)
        previous = node


def _is_apart(node: ast.stmt) -> bool:
    return isinstance(node, DEFINES)


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _statement(node: ast.stmt, depth: int) -> Iterator[str]:
    pad = "    " * depth
    verbatim = getattr(node, "verbatim", None)
    if not isinstance(getattr(node, "body", None), list) or isinstance(node, ast.Match):
        text = verbatim if verbatim else double_quoted(ast.unparse(node))
        yield from textwrap.indent(text, pad).splitlines()
        return
    yield from textwrap.indent(verbatim or _header(node), pad).splitlines()
    yield from _block(node.body, depth + 1)  # type: ignore[attr-defined]
    for handler in getattr(node, "handlers", []):
        yield from textwrap.indent(_header(handler), pad).splitlines()
        yield from _block(handler.body, depth + 1)
    orelse = getattr(node, "orelse", [])
    if len(orelse) == 1 and isinstance(node, ast.If) and isinstance(orelse[0], ast.If) and not hasattr(orelse[0], "verbatim"):  # fmt: skip
        inner = list(_statement(orelse[0], depth))
        yield from (pad + "el" + inner[0].removeprefix(pad), *inner[1:])
    elif orelse:
        yield f"{pad}else:"
        yield from _block(orelse, depth + 1)
    if getattr(node, "finalbody", []):
        yield f"{pad}finally:"
        yield from _block(node.finalbody, depth + 1)  # type: ignore[attr-defined]


def _header(node: Any) -> str:
    """The statement without what it holds."""
    shell = copy.copy(node)
    shell.body = [ast.Pass()]
    for name in ("orelse", "finalbody", "handlers"):
        if hasattr(shell, name):
            setattr(shell, name, [])
    if isinstance(node, ast.Try):
        return "try:"
    text = ast.unparse(ast.fix_missing_locations(shell))
    return double_quoted(text[: text.rindex("pass")].rstrip())


def double_quoted(text: str) -> str:
    """The strings of a piece of source in double quotes, where that needs no escape."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return text
    lines = text.splitlines(keepends=True)
    for token in reversed(tokens):
        if token.type == tokenize.STRING and token.start[0] == token.end[0] and _is_simple(token.string):
            row, (start, end) = token.start[0] - 1, (token.start[1], token.end[1])
            prefix, _, body = token.string.partition("'")
            lines[row] = lines[row][:start] + f'{prefix}"{body[:-1]}"' + lines[row][end:]
    return "".join(lines)


def _is_simple(string: str) -> bool:
    return string.endswith("'") and not string.endswith("'''") and not any(c in string for c in '"\\')
