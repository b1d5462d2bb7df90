"""Which conditions a line of the user's hangs on: branches and loops around it, early exits before it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from nsadiag.evidence.records import Place
from nsadiag.source.gates import Gates
from nsadiag.source.model import (
    Function,
    Loop,
    Scope,
    SourceFile,
    calls_in,
    last_name,
    name_of,
    names_in,
    returned_by,
)
from nsadiag.source.provenance import Origin, Origins

Kind = Literal["if", "while", "for", "except", "choice", "only"]
Leaves = Literal["", "continue", "break", "return", "raise"]
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
AGREE = re.compile(
    r"^(all_reduce|broadcast\w*|all_gather\w*|reduce_scatter\w*|gather_for_metrics|reduce|agree\w*)$"
)
EXITS = frozenset({"exit", "_exit", "quit"})


@dataclass(frozen=True, kw_only=True)
class Guard:
    """One condition, and the branch of it that leads to a line."""

    file: str
    line: int
    function: str
    kind: Kind
    branch: str  # body or orelse; where it leaves: how
    origin: Origin
    test: str
    leaves: Leaves = ""
    leaves_at: int | None = None
    ends: int = 0  # last line of the statement
    branch_ends: int = 0  # and of the branch
    rank: int | None = None  # the one rank that the test names; -1 for the last

    @property
    def is_loop(self) -> bool:
        return self.kind in ("for", "while") and not self.leaves


class Program:
    """What the user's files say together."""

    def __init__(self, files: Mapping[str, SourceFile]) -> None:
        self.files = files
        self.origins = Origins(files)
        self.gates = Gates(files, self.origins)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for file in self.files.values() for child, node in file.parents.items()}

    def path_to(self, file: str, line: int) -> list[ast.AST]:
        """Statements and handlers around the line within its function, outermost first; the last is the line's own."""
        return self.files[file].path_to(line) if file in self.files else []

    def scope_of(self, file: str, line: int) -> Scope:
        """The function in which the line is."""
        return self.files[file].scope_of(line) if file in self.files else (file, "")

    def around(self, file: str, line: int) -> list[Guard]:
        """Branches and loops within its function that the line is in, outermost first."""
        path = self.path_to(file, line)
        found = [g for outer, inner in itertools.pairwise(path) if (g := self._guard(file, outer, inner))]
        return self._gates(file, path[0]) + found + self._choices(file, path[-1], line) if path else []

    def _gates(self, file: str, outermost: ast.AST) -> list[Guard]:
        """Around the function, those that by their name let one rank in; one of the user's own shows its condition on the stack."""
        function = self.parents.get(outermost)
        if not isinstance(function, Function):
            return []
        return [
            Guard(
                file=file, line=gate.line, function=function.name, kind="only", branch="body", origin="rank", test=gate.name,
                ends=function.end_lineno or 0, branch_ends=function.end_lineno or 0, rank=gate.rank,
            )
            for gate in self.gates.of(file, function, self.scope_of(file, function.lineno))
        ]  # fmt: skip

    def is_handling(self, at: Place, *, of: Place) -> bool:
        """Whether line `at` belongs to an `except` or `finally` of a `try` whose body line `of` is in."""
        for outer, inner in itertools.pairwise(self.path_to(at.file, at.line)):
            if not isinstance(outer, ast.Try) or inner in outer.body + outer.orelse:
                continue
            if outer.body[0].lineno <= of.line <= (outer.body[-1].end_lineno or 0):
                return True
        return False

    def _guard(self, file: str, outer: ast.AST, inner: ast.AST) -> Guard | None:
        scope = self.scope_of(file, outer.lineno) if isinstance(outer, ast.stmt) else ("", "")
        if isinstance(outer, ast.If | ast.While):
            branch = "body" if inner in outer.body else "orelse"
            kind: Kind = "if" if isinstance(outer, ast.If) else "while"
            return self._made(scope, outer, kind, branch, outer.test)
        if isinstance(outer, ast.For):
            return self._made(scope, outer, "for", "body" if inner in outer.body else "orelse", outer.iter)
        if isinstance(outer, ast.Try) and isinstance(inner, ast.ExceptHandler):
            origin: Origin = "input" if _stops(inner) else "data"
            return Guard(
                file=file, line=inner.lineno, function=scope[1].rpartition(".")[2], kind="except", branch="body",
                origin=origin, test=ast.unparse(inner.type) if inner.type else "", ends=inner.end_lineno or 0,
            )  # fmt: skip
        if isinstance(outer, ast.Match):
            return self._made(scope, outer, "if", str(outer.cases.index(inner)), outer.subject)  # type: ignore[arg-type]
        return None

    def _choices(self, file: str, statement: ast.AST, line: int) -> list[Guard]:
        """`rank == 0 and save()`, `save() if rank == 0 else None`: conditions inside one statement."""
        scope, found = self.scope_of(file, line), []
        for node in _own_expressions(statement):
            # One between two values leads to no call, whoever takes which.
            if isinstance(node, ast.IfExp) and self._leads_to_a_call(node):
                found.append(self._made(scope, node, "choice", "body", node.test))
            elif isinstance(node, ast.BoolOp) and any(map(calls_in, node.values[1:])):
                found.append(self._made(scope, node, "choice", "body", node.values[0]))
        return found

    def choice(self, node: ast.IfExp, scope: Scope, branch: str) -> Guard:
        """The condition of `a if condition else b`, and which of the two it leads to."""
        return self._made(scope, node, "choice", branch, node.test)

    def comprehensions(self, file: str, line: int) -> list[Guard]:
        """Loops within the line's statement that make calls, for each of what they go over: `[m.reduce() for m in meters]`."""
        path, scope = self.path_to(file, line), self.scope_of(file, line)
        found = [n for n in _own_expressions(path[-1]) if isinstance(n, Comprehension)] if path else []
        plain = [n for n in found if not any(part.ifs for part in n.generators)]
        calls = [n for n in plain if any(map(calls_in, _made_by(n)))]
        return [self._made(scope, n, "for", "body", n.generators[0].iter) for n in calls]

    def _leads_to_a_call(self, choice: ast.IfExp) -> bool:
        parent = self.parents.get(choice)
        chosen = isinstance(parent, ast.Call) and parent.func is choice
        return chosen or any(map(calls_in, (choice.body, choice.orelse)))

    def _made(
        self, scope: Scope, node: ast.stmt | ast.expr, kind: Kind, branch: str, test: ast.expr, **more: object
    ) -> Guard:
        origin = self.origins.of(test, scope)
        if origin == "data" and kind in ("if", "while") and self._agreed(scope, test, node.lineno):
            origin = "uniform"
        return Guard(
            file=scope[0], line=node.lineno, function=scope[1].rpartition(".")[2], kind=kind, branch=branch,
            origin=origin, test=ast.unparse(test), ends=node.end_lineno or 0, rank=self._named(test, scope),
            branch_ends=_end_of(node, branch),
            **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def _agreed(self, scope: Scope, test: ast.expr, line: int) -> bool:
        """Whether a name in the test went through a collective just before, so that all ranks hold the same."""
        names = names_in(test)
        last: tuple[int, bool] = (0, False)
        for function_scope, call in (c for calls in self.origins.calls.values() for c in calls):
            used = {name for argument in call.args for name in names_in(argument)}
            if (
                function_scope == scope
                and call.lineno < line
                and used & names
                and AGREE.search(name_of(call))
            ):
                last = max(last, (call.lineno, True))
        return last[1]

    def jumps_before(self, file: str, line: int) -> list[Guard]:
        """Early exits that stand before the line, in the blocks around it: whoever took one never came to the line."""
        path = self.path_to(file, line)
        found: list[Guard] = []
        for depth, node in enumerate(path):
            parent = self.parents.get(node)
            for block in _blocks(parent):
                if node in block:
                    for earlier in block[: block.index(node)]:
                        found += self._exits(
                            file, earlier, in_loop=any(isinstance(p, Loop) for p in path[:depth])
                        )
        return found

    def calls_on(self, file: str, line: int) -> list[str]:
        """Names of what the line's statement calls."""
        return [name for call in self.call_nodes_on(file, line) if (name := name_of(call))]

    def call_nodes_on(self, file: str, line: int) -> list[ast.Call]:
        """What the line's statement calls, itself or in its head."""
        path = self.path_to(file, line)
        return [n for n in _own_expressions(path[-1]) if isinstance(n, ast.Call)] if path else []

    def choices_in(self, function: str) -> list[Guard]:
        """Branches in functions of that name that can differ between ranks."""
        found = []
        for (file, path), node in self.origins.functions.get(function, ()):
            for each in ast.walk(node):
                if isinstance(each, ast.If):
                    guard = self._made((file, path), each, "if", "body", each.test)
                    found += [guard] if guard.origin != "uniform" else []
        return found

    def exits_of_loop(self, loop: Guard) -> list[Guard]:
        """Conditions that leave the loop before its end."""
        found: list[Guard] = []
        for node in self.path_to(loop.file, loop.line)[-1:]:
            if isinstance(node, Loop):
                for statement in node.body:
                    found += self._exits(loop.file, statement, in_loop=True)
        return [g for g in found if g.leaves in ("break", "return")]

    def _exits(self, file: str, statement: ast.AST, *, in_loop: bool) -> list[Guard]:
        """The conditions under which the statement jumps away; a loop inside keeps its own continue and break."""
        found: list[Guard] = []
        for leaves, node in _jumps(statement, own_loop=in_loop):
            outer: ast.AST | None = node
            inner: ast.AST = node
            while outer is not None and outer is not statement:
                inner, outer = outer, self.parents.get(outer)
                made = self._guard(file, outer, inner) if outer is not None else None
                if made is not None and not made.is_loop:
                    found.append(_leaving(made, leaves, node.lineno))
                    break
        return found

    @cached_property
    def returns(self) -> dict[str, list[tuple[Scope, ast.expr]]]:
        """By a function's name, what it returns."""
        found: dict[str, list[tuple[Scope, ast.expr]]] = {}
        for name, functions in self.origins.functions.items():
            for scope, function in functions:
                found.setdefault(name, []).extend((scope, value) for value in returned_by(function))
        return found

    @cached_property
    def put_under_keys(self) -> list[tuple[Scope, ast.Subscript, ast.expr]]:
        """All `a[b] = c`."""
        return [
            (file.scope_of(node.lineno), target, node.value)
            for file in self.files.values()
            for node in file.all(ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Subscript)
        ]

    def _named(self, test: ast.expr, scope: Scope, depth: int = 0) -> int | None:
        """The rank that the test singles out, by whichever helper or name."""
        for node in ast.walk(test):
            if (
                isinstance(node, ast.Compare)
                and len(node.ops) == 1
                and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.Gt | ast.GtE | ast.Is)
            ):
                number = _number(node.comparators[0])
                number = _number(node.left) if number is None else number
                if number is not None and self.origins.of(node, scope) == "rank":
                    return number
            if (
                isinstance(node, ast.UnaryOp)
                and isinstance(node.op, ast.Not)
                and re.search(r"rank$", last_name(node.operand))
            ):
                return 0
            name = (
                last_name(node.func if isinstance(node, ast.Call) else node)
                if isinstance(node, ast.expr)
                else ""
            )
            names_first = re.search(r"main|master|zero|chief|leader|primary|first", name)
            if names_first and isinstance(node, ast.expr) and self.origins.of(node, scope) == "rank":
                return 0
            found = self._through(node, name, scope, depth)
            if found is not None:
                return found
        return None

    def _through(self, node: ast.AST, name: str, scope: Scope, depth: int) -> int | None:
        """Behind a helper that is called, or a name that was assigned."""
        if depth > 3 or not name or not isinstance(node, ast.expr):
            return None
        behind = list(self.returns.get(name, ()))
        if isinstance(node, ast.Name | ast.Attribute):
            behind += [
                (b.scope, b.value)
                for key in self.origins.keys_of(node, scope)
                for b in self.origins.bindings[key]
            ]
        numbers = (self._named(value, where, depth + 1) for where, value in behind)
        return next((n for n in numbers if n is not None), None)


def _end_of(node: ast.AST, branch: str) -> int:
    block = getattr(node, branch, None)
    last = block[-1] if isinstance(block, list) and block else node
    return int(getattr(last, "end_lineno", 0) or 0)


def _leaving(guard: Guard, leaves: Leaves, line: int) -> Guard:
    return replace(guard, leaves=leaves, leaves_at=line, branch=leaves)


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | str) and str(node.value).isdigit():
        return int(node.value)
    # `world_size - 1`
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and "world" in ast.unparse(node.left):
        return -1
    return None


def _stops(handler: ast.ExceptHandler) -> bool:
    return handler.type is not None and "StopIteration" in ast.unparse(handler.type)


def _blocks(node: ast.AST | None) -> Iterator[list[ast.AST]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _own_expressions(statement: ast.AST) -> Iterator[ast.AST]:
    """Of a simple statement, or of the head of a compound one."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr | ast.withitem):
            yield from ast.walk(child)


def _made_by(node: Comprehension) -> list[ast.expr]:
    return [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]


def _jumps(node: ast.AST, *, own_loop: bool) -> Iterator[tuple[Leaves, ast.stmt]]:
    if isinstance(node, ast.Return):
        yield "return", node
    elif isinstance(node, ast.Raise):
        yield "raise", node
    elif isinstance(node, ast.Continue) and own_loop:
        yield "continue", node
    elif isinstance(node, ast.Break) and own_loop:
        yield "break", node
    elif (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and last_name(node.value.func) in EXITS
    ):
        yield "raise", node
    elif not isinstance(node, Function | ast.ClassDef | ast.Lambda):
        inner = own_loop and not isinstance(node, Loop)
        for child in ast.iter_child_nodes(node):
            yield from _jumps(child, own_loop=inner)
