"""Functions of ours as syntax: which of their lines decided how a call ended, and the conditions that they asked."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType

EXITS = (ast.Return, ast.Yield, ast.YieldFrom, ast.Raise, ast.Continue, ast.Break)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, eq=False)
class Test:
    """A condition of an `if` or `while`, or a `return` with one inside, and what it reads of the call's own values."""

    text: str  # "if what is None"
    line: int
    lines: frozenset[int]
    body: frozenset[int]  # lines that run where it holds; none of a `return`
    reads: tuple[tuple[str, ...], ...]  # names, each with its attributes: ("blocked", "state", "place")


@dataclass(frozen=True, eq=False)
class Function:
    """One function: its conditions by line, and the lines that decide."""

    node: ast.FunctionDef | ast.AsyncFunctionDef

    @functools.cached_property
    def tests(self) -> dict[int, Test]:
        """By each line of theirs. Of the conditions, those of the function's own statements."""
        found: dict[int, Test] = {}
        for node in _own(self.node):
            if isinstance(node, ast.If | ast.While):
                word = "if" if isinstance(node, ast.If) else "while"
                test = _test(f"{word} {ast.unparse(node.test)}", node.test, _lines_of(node.body))
            elif isinstance(node, ast.Return) and node.value is not None and _chooses(node.value):
                test = _test(ast.unparse(node), node.value, frozenset())
            else:
                continue
            found |= dict.fromkeys(test.lines | {node.lineno}, test)
        return found

    @property
    def turning_points(self) -> Iterator[ast.AST]:
        """Conditions and loops that may lead to another end, and generators whose values are its own."""
        for node in _own(self.node):
            if isinstance(node, ast.YieldFrom):
                yield node
            elif isinstance(node, ast.If | ast.While) and _leaves([*node.body, *node.orelse]):
                yield node.test
            elif isinstance(node, ast.For) and _leaves(node.body):
                yield node.iter

    @functools.cached_property
    def values(self) -> dict[str, list[ast.AST]]:
        """By name, what is assigned or added to it, and the conditions under which it is."""
        found: dict[str, list[ast.AST]] = {}
        for node, conditions in _guarded(self.node, ()):
            for target, value in _assigned(node):
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, []).extend((value, *conditions))
        return found


@functools.cache
def decisive_lines(function: Function, ended: int) -> frozenset[int]:
    """Lines on which it depends that a call ended in that line.

    Those of the statement itself, of conditions and loops that may lead elsewhere, and of assignments of what these read.
    """
    last = (n for n in _own(function.node) if isinstance(n, ast.stmt) and ended in _header_lines(n))
    chosen: list[ast.AST] = [*function.turning_points, *last]
    known: set[ast.AST] = set()
    while chosen:
        node = chosen.pop()
        if node not in known:
            known.add(node)
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            chosen += [value for name in names for value in function.values.get(name, ())]
    return frozenset(line for node in known for line in _header_lines(node))


def function_of(code: CodeType) -> Function | None:
    """The function whose code it is; None where its source is not there."""
    return _functions(code.co_filename).get(code.co_firstlineno)


@functools.cache
def _functions(file: str) -> dict[int, Function]:
    """By the first line, decorators included."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): Function(node)
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
    }


def _test(text: str, node: ast.expr, body: frozenset[int]) -> Test:
    return Test(
        text=text, line=node.lineno, lines=_lines_of([node]), body=body, reads=tuple(dict.fromkeys(_reads(node)))
    )  # fmt: skip


def _chooses(node: ast.expr) -> bool:
    """Whether its value depends on a condition inside it."""
    return any(
        isinstance(n, ast.BoolOp | ast.IfExp | ast.Compare) or (isinstance(n, ast.comprehension) and n.ifs)
        for n in ast.walk(node)
    )


def _reads(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """Names with their attributes, without what is called on them."""
    if isinstance(node, ast.Attribute | ast.Name) and (chain := _chain(node)):
        yield chain
        return
    if isinstance(node, ast.Call):
        held = node.func.value if isinstance(node.func, ast.Attribute) else None
        for each in (held, *node.args, *(k.value for k in node.keywords)):
            yield from _reads(each) if each is not None else ()
        return
    for child in ast.iter_child_nodes(node):
        yield from _reads(child)


def _chain(node: ast.expr) -> tuple[str, ...]:
    """`("blocked", "state")` of `blocked.state`; empty where it begins with anything but a name."""
    if isinstance(node, ast.Name):
        return (node.id,)
    inner = _chain(node.value) if isinstance(node, ast.Attribute) else ()
    return (*inner, node.attr) if inner and isinstance(node, ast.Attribute) else ()


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Its nodes without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, FUNCTIONS):
            yield from _own(child)


def _guarded(node: ast.AST, conditions: tuple[ast.AST, ...]) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """The same, each with the conditions and loops around it."""
    for child in ast.iter_child_nodes(node):
        yield child, conditions
        if not isinstance(child, FUNCTIONS):
            yield from _guarded(child, (*conditions, *_condition_of(child)))


def _condition_of(node: ast.AST) -> tuple[ast.AST, ...]:
    if isinstance(node, ast.If | ast.While):
        return (node.test,)
    return (node.iter,) if isinstance(node, ast.For) else ()


def _leaves(body: Iterable[ast.stmt]) -> bool:
    return any(isinstance(node, EXITS) for statement in body for node in ast.walk(statement))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Targets of an assignment, a loop or a comprehension, each with what is assigned."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
    ):
        yield node.value.func.value, node.value  # found.append(...)


def _header_lines(node: ast.AST) -> frozenset[int]:
    """The lines of a node; of a statement with a body those of its head."""
    if isinstance(node, ast.If | ast.While):
        return _lines_of([node.test]) | {node.lineno}
    if isinstance(node, ast.For):
        return _lines_of([node.iter, node.target])
    return frozenset() if hasattr(node, "body") and isinstance(node, ast.stmt) else _lines_of([node])


def _lines_of(nodes: Iterable[ast.AST]) -> frozenset[int]:
    return frozenset(
        line
        for node in nodes
        for line in range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)
        if line
    )
