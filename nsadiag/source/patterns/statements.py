"""One statement as recorded paths ask for it: what its line reads, writes and decides."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nsadiag.evidence.records import Origin
from nsadiag.evidence.rehearsal.reads import Read, chain_of, head_of, names_in, names_read
from nsadiag.source.bindings import GROWS
from nsadiag.source.model import Function, SourceFile, calls_in, name_of
from nsadiag.source.patterns.origins import origin_of

JOINS = {"Join", "join"}  # contexts under which ranks with fewer inputs answer for their peers' calls
Kind = Literal["if", "while", "for", "match", "try", "return", "other"]
KINDS: dict[type[ast.stmt], Kind] = {
    ast.If: "if", ast.While: "while", ast.For: "for", ast.AsyncFor: "for", ast.Match: "match", ast.Try: "try", ast.Return: "return",
}  # fmt: skip
# Methods that change what they are called on, besides those that make it grow.
CHANGES = GROWS | {"pop", "popleft", "remove", "clear", "discard", "sort", "shuffle", "reverse", "setdefault", "appendleft", "put"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement, and how its line appears in a path: of `if done: break` on one line the condition is what it is about."""

    node: ast.stmt

    @property
    def kind(self) -> Kind:
        return KINDS.get(type(self.node), "other")

    @property
    def first(self) -> int:
        return self.node.lineno

    @property
    def last(self) -> int:
        return self.node.end_lineno or self.first

    @cached_property
    def test(self) -> str:
        """The condition of an `if` or `while`, as written."""
        return ast.unparse(self.node.test) if isinstance(self.node, ast.If | ast.While) else ""

    def has_in_body(self, line: int) -> bool:
        """Whether the line is one that runs where the condition holds, or in an iteration."""
        body: list[ast.stmt] = getattr(self.node, "body", [])
        return bool(body) and body[0].lineno <= line <= (body[-1].end_lineno or 0)

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        return names_read(self.node)

    @cached_property
    def writes(self) -> frozenset[Read]:
        """Names and attributes that it gives a value, or whose content it changes."""
        return frozenset(filter(None, _written(self.node)))

    @cached_property
    def decides(self) -> bool:
        """Whether it chooses what runs next."""
        if self.kind not in ("return", "other"):
            return True
        parts = [node for part in head_of(self.node) for node in ast.walk(part)]
        return any(isinstance(node, ast.IfExp | ast.BoolOp) for node in parts)

    @cached_property
    def asks_for_a_flag(self) -> bool:
        """Whether it is a condition that only passes on what another line has chosen."""
        return isinstance(self.node, ast.If | ast.While) and asks_for_a_flag(self.node.test)

    @property
    def asks_an_attribute(self) -> bool:
        """Whether it is a condition that is an attribute and nothing else: `stopper.stop`."""
        return isinstance(self.node, ast.If | ast.While) and isinstance(self.node.test, ast.Attribute)

    @cached_property
    def chooses_a_value(self) -> bool:
        """Whether the value that it gives is one of a few, by what is asked there."""
        value = getattr(self.node, "value", None)
        return self.kind in ("if", "while") or isinstance(value, ast.Compare | ast.BoolOp | ast.IfExp)

    @property
    def leaves(self) -> bool:
        """Whether what runs next is not what stands behind it."""
        return isinstance(self.node, ast.Return | ast.Break | ast.Continue | ast.Raise)

    @cached_property
    def origin(self) -> Origin:
        return origin_of(self.node)

    def calls(self, name: str) -> bool:
        """Whether its own expressions call a function of that name."""
        parts = [node for part in head_of(self.node) for node in ast.walk(part)]
        return any(isinstance(node, ast.Call) and name_of(node) == name for node in parts)

    def call_of(self, name: str) -> ast.Call | None:
        """Its one call of a function of that name."""
        named = [n for n in ast.walk(self.node) if isinstance(n, ast.Call) and name_of(n) == name]
        return named[0] if len(named) == 1 else None


def statement_of(file: SourceFile | None, line: int) -> Statement | None:
    """The statement that a line event of that line is about."""
    found = file.statement_at(line) if file else None
    while file and found and isinstance(outer := file.parents.get(found), ast.stmt):
        if outer.lineno != line or isinstance(outer, Function | ast.ClassDef):
            break
        found = outer
    return Statement(found) if found is not None else None


def asks_for_a_flag(test: ast.expr) -> bool:
    """Whether a test only asks for a value that was chosen elsewhere: `stop`, `not loop.done`, `turn == "critic"`, `usable(batch)`."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Compare):
        same = all(isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) for op in test.ops)
        constant = all(isinstance(each, ast.Constant) for each in test.comparators)
        return same and constant and isinstance(test.left, ast.Name | ast.Attribute | ast.Call)
    return isinstance(test, ast.Name | ast.Attribute | ast.Call)


def is_handler(file: SourceFile | None, line: int) -> bool:
    """Whether the line is an `except`."""
    return file is not None and any(node.lineno == line for node in file.all(ast.ExceptHandler))


@dataclass(frozen=True, kw_only=True)
class LoopLines:
    """The lines of a loop. `head` is the one that each iteration begins with."""

    first: int
    last: int
    head: int
    body: int


def loops_of(file: SourceFile | None) -> Sequence[LoopLines]:
    """The loops of a file, the outer ones first."""
    found = []
    for node in file.nodes if file else ():
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            body = node.body[0].lineno
            forever = isinstance(node, ast.While) and isinstance(node.test, ast.Constant)
            head = body if forever else node.lineno
            found.append(LoopLines(first=node.lineno, last=node.end_lineno or body, head=head, body=body))
    return sorted(found, key=lambda loop: (loop.first, -loop.last))


def given_names(
    file: SourceFile | None, first: int, parameter: str, caller: Statement
) -> tuple[Read, ...] | None:
    """The names in the argument that a parameter of the function at that line got by the statement; None where it has no such."""
    function = next((f for f in file.functions if _first_line(f) == first), None) if file else None
    if function is None:
        return None
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if parameter not in {*names, *(a.arg for a in function.args.kwonlyargs)}:
        return None
    above = file.parents.get(function) if file else None
    of_class = function.name == "__init__" and isinstance(above, ast.ClassDef)
    call = caller.call_of(above.name if of_class and isinstance(above, ast.ClassDef) else function.name)
    if call is None:
        return caller.reads
    if names and names[0] in ("self", "cls"):
        names = names[1:]
    given = next((k.value for k in call.keywords if k.arg == parameter), None)
    if given is None and parameter in names and names.index(parameter) < len(call.args):
        given = call.args[names.index(parameter)]
    return tuple(dict.fromkeys(names_in(given))) if given is not None else ()


def _first_line(function: Function) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _written(node: ast.stmt) -> Iterator[Read]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt) and inner.lineno == node.lineno:
            yield from _written(inner)
    for target in _bound_by(node):
        yield from _targets(target)
    if isinstance(node, ast.Expr):
        yield from _changed(node)
    for each in ast.walk(node) if isinstance(node, ast.If | ast.While | ast.Assign | ast.Return) else ():
        if isinstance(each, ast.NamedExpr):
            yield (each.target.id,)


def _bound_by(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        return [node.target]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return []


def _changed(node: ast.Expr) -> Iterator[Read]:
    """Whatever a method changes that is called for that alone; `random.shuffle(order)` changes what it is given."""
    for call in ast.walk(node.value):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in CHANGES:
            yield chain_of(call.func.value)
            for given in call.args[:1] if call.func.attr == "shuffle" else ():
                yield chain_of(given)


def _targets(node: ast.expr) -> Iterator[Read]:
    if isinstance(node, ast.Tuple | ast.List):
        for each in node.elts:
            yield from _targets(each)
    elif isinstance(node, ast.Starred | ast.Subscript):
        yield from _targets(node.value)
    else:
        yield chain_of(node)


def gates_around(file: SourceFile, line: int) -> Iterator[Statement]:
    """The conditions and loops of its function that the line is in, the innermost first."""
    for node in reversed(file.path_to(line)):
        if isinstance(node, Function):
            return
        if isinstance(node, ast.If | ast.While | ast.For | ast.AsyncFor) and node.lineno < line:
            yield Statement(node)


def joins_around(file: SourceFile | None, line: int) -> set[int]:
    """Lines of the `with Join([model]):` and `with model.join():` around a line, within its function."""
    around = file.around(line, ast.With) if file is not None else []
    return {n.lineno for n in around if any(name_of(c) in JOINS for i in n.items for c in calls_in(i))}
