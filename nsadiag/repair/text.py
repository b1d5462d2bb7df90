"""Edits of a module's text at nodes of its syntax tree: whatever is not edited stays as it was written."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.source.model import SourceFile
from nsadiag.source.provenance import Dataflow, Provenance
from nsadiag.source.syntax import parse

NAME = "/module.py"  # by which its model knows it
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """The text of a module, and the lines at which its repair is tried, the likeliest first."""

    text: str
    lines: tuple[int, ...] = ()

    @functools.cached_property
    def tree(self) -> ast.Module:
        return parse(self.text)

    @functools.cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @functools.cached_property
    def rows(self) -> list[str]:
        """Lines with their ends."""
        return self.text.splitlines(keepends=True)

    def around(self, *kinds: type[ast.AST]) -> list[ast.AST]:
        """Nodes of these kinds that hold one of the lines, innermost first; then others of the same functions, nearest first."""
        found: dict[ast.AST, None] = {}
        for line in self.lines:
            holding = [n for n in self._spanning(line) if isinstance(n, kinds)]
            found.update(dict.fromkeys(sorted(holding, key=_size)))
        for line in self.lines:
            function = min(
                (n for n in self._spanning(line) if isinstance(n, FUNCTIONS)), key=_size, default=self.tree
            )
            inside = [n for n in ast.walk(function) if isinstance(n, kinds)]
            found.update(dict.fromkeys(sorted(inside, key=lambda n: abs(n.lineno - line))))  # type: ignore[attr-defined]
        return list(found)

    def _spanning(self, line: int) -> Iterator[ast.AST]:
        for node in ast.walk(self.tree):
            if getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0):
                yield node

    @functools.cached_property
    def _flow(self) -> tuple[SourceFile, Dataflow]:
        file = SourceFile(NAME, self.tree)
        return file, Dataflow({NAME: file})

    def provenance(self, test: ast.expr) -> Provenance:
        """The kind of value that an expression depends on: the rank, this rank's own data, or nothing that differs."""
        file, flow = self._flow
        return flow.of(test, file.scope_of(test.lineno))

    def source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def binds(self, name: str) -> bool:
        """Whether the module has that name anywhere."""
        return any(
            name in (getattr(n, "id", None), getattr(n, "name", None), getattr(n, "arg", None))
            for n in ast.walk(self.tree)
        )

    def at_lines(self, *kinds: type[ast.AST]) -> list[ast.AST]:
        """Nodes of these kinds that begin at one of the lines, or whose statement does, in the order of the lines."""
        found: dict[ast.AST, None] = {}
        for line in self.lines:
            statements = [n for n in self._spanning(line) if isinstance(n, ast.stmt)]
            inner = min(statements, key=_size, default=None)
            if inner is not None:
                found.update(dict.fromkeys(n for n in header(inner) if isinstance(n, kinds)))
        return list(found)

    def function_of(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Module:
        """The innermost function that holds the node, else the module."""
        while (parent := self.parents.get(node)) is not None:
            if isinstance(parent, FUNCTIONS):
                return parent
            node = parent
        return self.tree

    def body_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which it stands."""
        parent = self.parents[statement]
        bodies = (getattr(parent, name, []) for name in ("body", "orelse", "finalbody"))
        return next(body for body in bodies if statement in body)

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds the node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    # -- edits, each of which returns the new text ------------------------------------------------

    def replaced(self, node: ast.expr, text: str) -> str:
        """The expression as another one."""
        return self.edited((node, text))

    def edited(self, *edits: tuple[ast.AST, str]) -> str:
        """Nodes as other texts; none of them holds another one. A statement is replaced up to its end, where it begins."""
        rows = [row.encode() for row in self.rows]
        for node, text in sorted(edits, key=lambda edit: -_at(edit[0])[0] * 10**6 - _at(edit[0])[1]):
            line, column = _at(node)
            last, end = (node.end_lineno or 0) - 1, node.end_col_offset  # type: ignore[attr-defined]
            whole = rows[line - 1][:column] + text.encode() + rows[last][end:]
            rows[line - 1 : last + 1] = [whole]
        return b"".join(rows).decode()

    def without(self, statement: ast.stmt) -> str:
        """The text without a statement; `pass` stays where nothing else does."""
        if len(self.body_of(statement)) == 1:
            return self.edited((statement, "pass"))
        first, last = first_line(statement), statement.end_lineno or statement.lineno
        return "".join(self.rows[: first - 1] + self.rows[last:])

    def indented(self, statement: ast.stmt, *lines: str) -> str:
        """Lines with the statement's indentation, joined: the first has none, as it stands where the statement does."""
        return ("\n" + " " * statement.col_offset).join(lines)

    def moved_before(self, statements: list[ast.stmt], place: ast.stmt) -> str:
        """The statements, which lie in the body of `place`, in front of it; `pass` stays where nothing else does."""
        gone = {n for s in statements for n in range(first_line(s), (s.end_lineno or s.lineno) + 1)}
        indent = " " * place.col_offset
        moved = [self._indented(number, statements[0].col_offset, indent) for number in sorted(gone)]
        body = getattr(place, "body", [])
        rest = [] if len(statements) < len(body) else [f"{' ' * statements[0].col_offset}pass\n"]
        end = max(gone)
        rows: list[str] = []
        for number, row in enumerate(self.rows, 1):
            if number == first_line(place):
                rows += moved
            if number not in gone:
                rows.append(row)
            elif number == end:
                rows += rest
        return "".join(rows)

    def _indented(self, number: int, before: int, indent: str) -> str:
        row = self.rows[number - 1]
        return indent + row[before:] if row[:before].isspace() else row


def first_line(statement: ast.stmt) -> int:
    """With its decorators."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def with_helper(text: str, helper: str) -> str:
    """The module with a function behind its imports."""
    tree = parse(text)
    rows = text.splitlines(keepends=True)
    last = max(
        (s.end_lineno or 0 for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom)), default=0
    )
    after = "".join(rows[last:]).lstrip("\n")
    return f"{''.join(rows[:last])}\n\n{helper.strip()}\n\n\n{after}"


def header(statement: ast.stmt) -> Iterator[ast.AST]:
    """The statement and the expressions in it, without those of statements inside it."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop(0)
        yield node
        pending += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.stmt | ast.ExceptHandler)
        ]


def _at(node: ast.AST) -> tuple[int, int]:
    if isinstance(node, ast.stmt):
        return first_line(node), node.col_offset
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _size(node: ast.AST) -> int:
    return (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0)
