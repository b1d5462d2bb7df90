"""The user's files as syntax trees: each parsed once, with its parents, and what holds a line."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from nsadiag.evidence.records import Place
from nsadiag.source.archive import is_source
from nsadiag.source.syntax import parse

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While
Node = TypeVar("Node", bound=ast.AST)
CallPath = tuple[Place, ...]  # lines that call one another, outermost first


class Scope(NamedTuple):
    """A function of a file, or its top."""

    file: str
    path: str  # dotted, "" at the top

    @property
    def function(self) -> str:
        """Its own name."""
        return self.path.rpartition(".")[2]

    def place(self, line: int) -> Place:
        """A line in it."""
        return place(self.file, line, self.function or None)


class SourceFile:
    """One file."""

    def __init__(self, path: str, tree: ast.Module, text: str = "") -> None:
        self.path, self.tree, self._text = path, tree, text
        self._scopes: dict[int, Scope] = {}

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def _lines(self) -> list[bytes]:
        return [line.encode() for line in self._text.split("\n")]

    def written(self, node: ast.expr) -> str:
        """The expression with the author's own quotes and brackets, where it stands on one line; else as Python would write it."""
        if not self._text or node.end_lineno != node.lineno:
            return ast.unparse(node)
        return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode(errors="replace")

    def all(self, kind: type[Node]) -> Iterator[Node]:
        """Every node of that kind."""
        return (node for node in self.nodes if isinstance(node, kind))

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Function))

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        return tuple(self.all(ast.Call))

    @cached_property
    def _statements(self) -> tuple[ast.stmt, ...]:
        return tuple(self.all(ast.stmt))

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that holds the line; a definition only where nothing else does."""
        inside = [node for node in self._statements if spans(node, line)]
        inside = [node for node in inside if not isinstance(node, Function | ast.ClassDef)] or inside
        return max(inside, key=lambda node: (node.lineno, node.col_offset), default=None)

    def text_with_callees(self, node: ast.stmt) -> str:
        """The statement, and the functions of the file that it calls, as written."""
        called = set(map(name_of, calls_in(node)))
        return "\n".join(map(ast.unparse, [node, *(f for f in self.functions if f.name in called)]))

    def function_at(self, line: int) -> Function | None:
        """The innermost function that holds the line."""
        found = (node for node in self.functions if spans(node, line))
        return max(found, key=lambda node: node.lineno, default=None)

    def path_to(self, line: int) -> list[ast.AST]:
        """Statements and handlers around the line within its function, outermost first; the last is the line's own."""
        node: ast.AST | None = self.statement_at(line)
        found: list[ast.AST] = []
        while node is not None and not isinstance(node, Function | ast.Module | ast.ClassDef):
            found.append(node)
            node = self.parents.get(node)
        return found[::-1]

    def around(self, line: int, kind: type[Node]) -> list[Node]:
        """Statements of one kind around the line, innermost first."""
        return [node for node in reversed(self.path_to(line)) if isinstance(node, kind)]

    def loops_around(self, line: int) -> list[Loop]:
        """Loops within its function that the line is in, innermost first."""
        return [node for node in reversed(self.path_to(line)) if isinstance(node, Loop)]

    def scope_of(self, line: int) -> Scope:
        """The function in which the line is."""
        if line not in self._scopes:
            names: list[str] = []
            node: ast.AST | None = self.statement_at(line)
            while node is not None:
                if isinstance(node, Function | ast.ClassDef):
                    names.append(node.name)
                node = self.parents.get(node)
            self._scopes[line] = Scope(self.path, ".".join(reversed(names)))
        return self._scopes[line]


class SourceModel:
    """Files by the path that frames name: as kept with the evidence, else as they are on this disk."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._files: dict[str, SourceFile | None] = {}

    def file(self, path: str) -> SourceFile | None:
        """None where there is no source, or it is not Python."""
        if path not in self._files:
            self._files[path] = parsed(path, self._text(path))
        return self._files[path]

    @property
    def kept(self) -> list[SourceFile]:
        """Those that were kept with the evidence."""
        return [file for path in self._texts if (file := self.file(path)) is not None]

    def nodes(self, kind: type[Node]) -> Iterator[tuple[str, Node]]:
        """Every node of that kind in the files that were kept, with its file."""
        return ((file.path, node) for file in self.kept for node in file.all(kind))

    def _text(self, path: str) -> str | None:
        if path in self._texts:
            return self._texts[path]
        try:
            return Path(path).read_text(errors="replace") if is_source(path) else None
        except OSError:
            return None


def parsed(path: str, text: str | None) -> SourceFile | None:
    """The text as a file of that name; None where it is not Python."""
    try:
        return SourceFile(path, parse(text), text) if text is not None else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def place(file: str, line: int, function: str | None, code: str | None = None) -> Place:
    """The place, with its line of code if the file can be read here."""
    shown = file in linecache.cache or is_source(file)
    return Place(
        file=file,
        line=line,
        function=function,
        code=code or (linecache.getline(file, line).strip() or None if shown else None),
    )


def only(lines: Iterable[tuple[str, int]]) -> Place | None:
    """The place of a line, by file and number, if it is the only one."""
    found = list(dict.fromkeys(lines))
    return place(*found[0], None) if len(found) == 1 else None


def last_of_file(lines: Iterable[tuple[str, int]]) -> Place | None:
    """The place of the last of these lines, if all are in one file."""
    found = list(lines)
    return place(*max(found), None) if len({file for file, _ in found}) == 1 else None


def spans(node: ast.AST, *lines: int) -> bool:
    """Whether the node holds all these lines."""
    first = getattr(node, "lineno", 0)
    last = getattr(node, "end_lineno", None) or first
    return all(first <= line <= last for line in lines)


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c`; "" for what has no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def name_of(call: ast.Call) -> str:
    """The last name of what is called."""
    return last_name(call.func)


def given_to(call: ast.Call) -> list[ast.expr]:
    """All arguments of a call."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def calls_in(node: ast.AST) -> list[ast.Call]:
    """Calls anywhere below the node."""
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def names_in(*nodes: ast.AST) -> set[str]:
    """Plain names anywhere in the nodes."""
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, without those of functions and classes that are defined there."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.ClassDef | ast.Lambda):
            yield child
            yield from own_nodes(child)


def returned_by(function: Function) -> list[ast.expr]:
    """All expressions that a function returns."""
    return [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
