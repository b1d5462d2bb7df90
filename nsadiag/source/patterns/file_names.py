"""File names in the source: those that a loop polls for, and those that a line would have created."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.model import SourceFile, SourceModel, calls_in, name_of, names_in, spans

# A part of a file's name: an ending alone is that of too many, and prose has spaces.
NAME = re.compile(r"^(?!utf-?8$|\.\w+$)[\w./-]{4,}$", re.IGNORECASE)
SAYS = frozenset({"print", "log", "debug", "info", "warning", "warn", "error", "exception", "getLogger"})


def asked_for(code: SourceModel, frames: tuple[Place, ...], at: Place) -> set[str]:
    """Names in the loop that asks, and in the calls that led to it: a path may come as an argument."""
    asking = code.file(at.file)
    loop = next(iter(asking.loops_around(at.line)), None) if asking else None
    found: set[str] = set()
    # A caller's line names what it calls next: of that only the arguments count, its body is the next frame.
    for place, callee in zip(frames, (None, *frames), strict=False):
        file = code.file(place.file)
        if file is None:
            continue
        scope = file.function_at(place.line) or file.tree
        asks = loop is not None and place.file == at.file and spans(loop, place.line)
        own: list[ast.AST] = [loop] if asks and loop else _statements(scope, place.line, place.line)
        called = (callee.function or "").rpartition(".")[2] if callee else ""
        found |= _names(file, [*own, *_bound(scope, _used(own))], but=called)
    return found


def names_at(code: SourceModel, at: Place) -> set[str]:
    """Names in that line, and in what the names there stand for."""
    file = code.file(at.file)
    if file is None:
        return set()
    scope = file.function_at(at.line) or file.tree
    own = _statements(scope, at.line, at.line)
    return _names(file, [*own, *_bound(scope, _used(own))])


def names_from(code: SourceModel, path: str, line: int) -> set[str]:
    """Names in that line, and in what is below it in its function."""
    file = code.file(path)
    function = file.function_at(line) if file else None
    if file is None or function is None:
        return set()
    return _names(file, _statements(function, line, function.end_lineno or 0))


def loop_asks(code: SourceModel, at: Place, what: re.Pattern[str]) -> bool:
    """Whether the nearest loop around that line has such a question in it."""
    file = code.file(at.file)
    loop = next(iter(file.loops_around(at.line)), None) if file else None
    return loop is not None and what.search(ast.unparse(loop)) is not None


def names_in_file(code: SourceModel, path: str) -> set[str]:
    """Names anywhere in that file."""
    file = code.file(path)
    return {text for text in _texts(file.tree) if NAME.search(text)} if file else set()


def _statements(within: ast.AST, first: int, last: int) -> list[ast.AST]:
    """Simple ones that hold a line of these, and the heads of others; without handlers, which do run."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(within):
        if not isinstance(node, ast.stmt):
            continue
        is_simple = not hasattr(node, "body")
        if is_simple and node.lineno <= last and (node.end_lineno or 0) >= first:
            found.append(node)
        elif not is_simple:
            heads = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr | ast.withitem)]
            found += heads if first <= node.lineno <= last else []
            found += _statements(node, first, last)
    return found


def _used(nodes: list[ast.AST]) -> set[str]:
    return {name for node in nodes for name in names_in(node)}


def _bound(scope: ast.AST, names: set[str]) -> list[ast.AST]:
    """Values that those names get in the function, and those of the names in these."""
    found: list[ast.AST] = []
    for _ in range(2):
        found = [
            n.value
            for n in ast.walk(scope)
            if isinstance(n, ast.Assign) and {t.id for t in n.targets if isinstance(t, ast.Name)} & names
        ]
        names = names | _used(found)
    return found


def _names(file: SourceFile, nodes: list[ast.AST], but: str = "") -> set[str]:
    """Texts that may be part of a file's name, there or in the functions and constants of the file that are used there."""
    calls = {name_of(call) for node in nodes for call in calls_in(node)}
    helpers = [function for function in file.functions if function.name in calls - {but}]
    used = _used([*nodes, *helpers])
    constants = [
        n.value
        for n in file.tree.body
        if isinstance(n, ast.Assign) and {t.id for t in n.targets if isinstance(t, ast.Name)} & used
    ]
    texts = (text for node in (*nodes, *helpers, *constants) for text in _texts(node))
    return {text for text in texts if NAME.search(text)}


def _texts(node: ast.AST) -> Iterator[str]:
    """Texts that are no messages, keys or answers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Call) and name_of(node) in SAYS:
        return
    elif isinstance(node, ast.Subscript):
        yield from _texts(node.value)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _texts(value)
    elif not isinstance(node, ast.Compare | ast.Raise | ast.keyword):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)
