"""Control dependence: the branches and loops around a line of the user's, and the early exits before it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping
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
    place,
)
from nsadiag.source.provenance import Dataflow, Provenance
from nsadiag.source.vocabulary import ENDS_PROCESS, equalizes

Kind = Literal["if", "while", "for", "except", "choice", "only"]
Leaves = Literal["", "continue", "break", "return", "raise"]
DEEPEST = 6  # functions that call one another


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One condition, and the branch of it that leads to a line."""

    file: str
    line: int
    function: str
    kind: Kind
    branch: str  # body or orelse; where it leaves: how
    provenance: Provenance
    test: str
    leaves: Leaves = ""
    ends: int = 0  # last line of the statement
    branch_ends: int = 0  # and of the branch
    rank: int | None = None  # the one rank that the test names; -1 for the last
    written: str = ""  # the test, with the author's own quotes and brackets
    deciding: str = ""  # the same of a test of several terms, without those that cannot differ

    @property
    def is_loop(self) -> bool:
        return self.kind in ("for", "while") and not self.leaves

    @property
    def differs(self) -> bool:
        """Whether it can differ between ranks."""
        return self.provenance != "uniform"

    @property
    def place(self) -> Place:
        """Its own line."""
        return place(self.file, self.line, self.function or None)

    def holds(self, at: Place) -> bool:
        """Whether the line is between its first and its last."""
        return at.file == self.file and self.line <= at.line <= self.ends

    def has_in_body(self, at: Place) -> bool:
        """The same without its head."""
        return at.file == self.file and self.line < at.line <= self.ends


class Program:
    """The user's files, with their bindings and the provenance of their expressions."""

    def __init__(self, files: Mapping[str, SourceFile]) -> None:
        self.files = files
        self.dataflow = Dataflow(files)
        self.gates = Gates(files, self.dataflow)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for file in self.files.values() for child, node in file.parents.items()}

    def path_to(self, file: str, line: int) -> list[ast.AST]:
        """Statements and handlers around the line within its function, outermost first; the last is the line's own."""
        return self.files[file].path_to(line) if file in self.files else []

    def scope_of(self, file: str, line: int) -> Scope:
        """The function in which the line is."""
        return self.files[file].scope_of(line) if file in self.files else Scope(file, "")

    def around(self, file: str, line: int) -> list[Condition]:
        """Branches and loops within its function that the line is in, outermost first."""
        path = self.path_to(file, line)
        found = [g for outer, inner in itertools.pairwise(path) if (g := self._guard(file, outer, inner))]
        return self._gates(file, path[0]) + found + self._choices(file, path[-1], line) if path else []

    def _gates(self, file: str, outermost: ast.AST) -> list[Condition]:
        """Around the function, those that by their name let one rank in; one of the user's own shows its condition on the stack."""
        function = self.parents.get(outermost)
        if not isinstance(function, Function):
            return []
        return [
            Condition(
                file=file, line=gate.line, function=function.name, kind="only", branch="body", provenance="rank", test=gate.name,
                ends=function.end_lineno or 0, branch_ends=function.end_lineno or 0, rank=gate.rank,
            )
            for gate in self.gates.of(file, function)
        ]  # fmt: skip

    def defined_under(self, at: Place) -> Condition | None:
        """The `if` within which the function that the line is in was defined."""
        function = self.files[at.file].function_at(at.line) if at.file in self.files else None
        outer = self.parents.get(function) if function is not None else None
        return (
            self._guard(at.file, outer, function)
            if function is not None and isinstance(outer, ast.If)
            else None
        )

    def is_handling(self, at: Place, *, of: Place) -> bool:
        """Whether line `at` belongs to an `except` or `finally` of a `try` whose body line `of` is in."""
        for outer, inner in itertools.pairwise(self.path_to(at.file, at.line)):
            if not isinstance(outer, ast.Try) or inner in outer.body + outer.orelse:
                continue
            if outer.body[0].lineno <= of.line <= (outer.body[-1].end_lineno or 0):
                return True
        return False

    def _guard(self, file: str, outer: ast.AST, inner: ast.AST) -> Condition | None:
        scope = self.scope_of(file, outer.lineno) if isinstance(outer, ast.stmt) else Scope("", "")
        if isinstance(outer, ast.If | ast.While):
            branch = "body" if inner in outer.body else "orelse"
            kind: Kind = "if" if isinstance(outer, ast.If) else "while"
            return self._made(scope, outer, kind, branch, outer.test)
        if isinstance(outer, ast.For):
            return self._made(scope, outer, "for", "body" if inner in outer.body else "orelse", outer.iter)
        if isinstance(outer, ast.Try) and isinstance(inner, ast.ExceptHandler):
            return self.handler(file, inner, inner.type)
        if isinstance(outer, ast.Match):
            return self._made(scope, outer, "if", str(outer.cases.index(inner)), outer.subject)  # type: ignore[arg-type]
        return None

    def handler(self, file: str, node: ast.ExceptHandler | ast.stmt, caught: ast.expr | None) -> Condition:
        """An `except`, or a `with suppress(...)`, as a condition: that such an exception comes."""
        text = ast.unparse(caught) if caught else ""
        return Condition(
            file=file, line=node.lineno, function=self.scope_of(file, node.lineno).function, kind="except", branch="body",
            provenance="input" if "StopIteration" in text else "data", test=text, ends=node.end_lineno or 0,
        )  # fmt: skip

    def _choices(self, file: str, statement: ast.AST, line: int) -> list[Condition]:
        """`rank == 0 and save()`, `save() if rank == 0 else None`: conditions inside one statement."""
        scope, found = self.scope_of(file, line), []
        for node in _own_expressions(statement):
            # One between two values leads to no call, whoever takes which.
            if isinstance(node, ast.IfExp) and self._leads_to_a_call(node):
                found.append(self._made(scope, node, "choice", "body", node.test))
            elif isinstance(node, ast.BoolOp) and any(map(calls_in, node.values[1:])):
                found.append(self._made(scope, node, "choice", "body", node.values[0]))
        return found

    def _leads_to_a_call(self, choice: ast.IfExp) -> bool:
        parent = self.parents.get(choice)
        chosen = isinstance(parent, ast.Call) and parent.func is choice
        return chosen or any(map(calls_in, (choice.body, choice.orelse)))

    def _made(
        self, scope: Scope, node: ast.stmt | ast.expr, kind: Kind, branch: str, test: ast.expr, **more: object
    ) -> Condition:
        provenance = self._provenance(scope, test, node.lineno, kind)
        return Condition(
            file=scope.file, line=node.lineno, function=scope.function, kind=kind, branch=branch,
            provenance=provenance, test=ast.unparse(test), ends=node.end_lineno or 0, rank=self.dataflow.named_rank(test, scope),
            branch_ends=_end_of(node, branch), written=self._written(scope, test), deciding=self._deciding(scope, test, provenance),
            **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def _written(self, scope: Scope, node: ast.expr) -> str:
        return self.files[scope.file].written(node) if scope.file in self.files else ast.unparse(node)

    def _deciding(self, scope: Scope, test: ast.expr, provenance: Provenance) -> str:
        """The terms of `a and b and c` on which it depends as the whole does; others as `...`."""
        if not isinstance(test, ast.BoolOp) or provenance == "uniform":
            return ""
        word = " and " if isinstance(test.op, ast.And) else " or "
        kept = [self.dataflow.of(term, scope) == provenance for term in test.values]
        shown = [
            self._written(scope, term) if keeps else "..."
            for term, keeps in zip(test.values, kept, strict=True)
        ]
        return word.join(text for text, _ in itertools.groupby(shown)) if any(kept) else ""

    def provenance_of(self, condition: Condition) -> Provenance:
        """The provenance of a condition of this program, worked out once more."""
        scope, test = self.scope_of(condition.file, condition.line), self.expression_of(condition)
        return self._provenance(scope, test, condition.line, condition.kind) if test else condition.provenance

    def expression_of(self, condition: Condition) -> ast.expr | None:
        """The expression that a condition of this program tests, or iterates over."""
        nodes = (n for s in self.path_to(condition.file, condition.line)[-1:] for n in ast.walk(s))
        tests = (t for n in nodes if isinstance(t := getattr(n, "test", getattr(n, "iter", None)), ast.expr))
        return next((t for t in tests if ast.unparse(t) == condition.test), None)

    def _provenance(self, scope: Scope, test: ast.expr, line: int, kind: Kind) -> Provenance:
        provenance = self.dataflow.of(test, scope)
        if provenance == "data" and kind in ("if", "while") and self._agreed(scope, test, line):
            return "uniform"
        return provenance

    def _agreed(self, scope: Scope, test: ast.expr, line: int) -> bool:
        """Whether a name in the test went through a collective just before, so that all ranks hold the same."""
        names = names_in(test)
        calls = (call for name, calls in self.dataflow.calls.items() if equalizes(name) for call in calls)
        return any(
            where == scope and call.lineno < line and names_in(*call.args) & names for where, call in calls
        )

    def jumps_before(self, file: str, line: int) -> list[Condition]:
        """Early exits that stand before the line, in the blocks around it: whoever took one never came to the line."""
        path = self.path_to(file, line)
        found: list[Condition] = []
        for depth, node in enumerate(path):
            parent = self.parents.get(node)
            for block in _blocks(parent):
                if node in block:
                    for earlier in block[: block.index(node)]:
                        found += self._exits(
                            file, earlier, in_loop=any(isinstance(p, Loop) for p in path[:depth])
                        )
        return found

    def on_rank(self, scope: Scope, line: int, depth: int = 0) -> Condition | None:
        """The condition on the rank that the line depends on, in its function or where that is called."""
        around = [c for c in self.around(scope.file, line) if c.provenance == "rank" and not c.is_loop]
        left = [
            c for c in self.jumps_before(scope.file, line) if c.provenance == "rank" and c.leaves != "raise"
        ]
        if around or left:
            return (around or left)[-1]
        calls = self.dataflow.calls_of(scope.function) if scope.path else []
        if len(calls) != 1 or depth > DEEPEST:
            return None
        where, call = calls[0]
        return self.on_rank(where, call.lineno, depth + 1)

    def callers(self, function: str) -> list[tuple[str, int]]:
        """File and line of each call that may be of the user's function of that name, not of a library's."""
        return [(scope.file, call.lineno) for scope, call in self.dataflow.calls_of(function)]

    def lines_calling(self, functions: Iterable[str], scope: Scope) -> list[int]:
        """Lines of a function that call any of those."""
        calls = (c for name in functions for c in self.dataflow.calls.get(name, ()))
        return [call.lineno for where, call in calls if where == scope]

    def assigned_at(self, at: Place) -> Provenance | None:
        """The provenance of the value that the line assigns; None where it assigns none."""
        path = self.path_to(at.file, at.line)
        assignment = path[-1] if path else None
        if not isinstance(assignment, ast.Assign):
            return None
        return self.dataflow.of(assignment.value, self.scope_of(at.file, at.line))

    def calls_on(self, file: str, line: int) -> list[str]:
        """Names of what the line's statement calls."""
        return [name for call in self.call_nodes_on(file, line) if (name := name_of(call))]

    def call_nodes_on(self, file: str, line: int) -> list[ast.Call]:
        """Calls that the line's statement makes, itself or in its head."""
        path = self.path_to(file, line)
        return [n for n in _own_expressions(path[-1]) if isinstance(n, ast.Call)] if path else []

    def exits_of_loop(self, loop: Condition) -> list[Condition]:
        """Conditions that leave the loop before its end."""
        found: list[Condition] = []
        for node in self.path_to(loop.file, loop.line)[-1:]:
            if isinstance(node, Loop):
                for statement in node.body:
                    found += self._exits(loop.file, statement, in_loop=True)
        return [g for g in found if g.leaves in ("break", "return")]

    def _exits(self, file: str, statement: ast.AST, *, in_loop: bool) -> list[Condition]:
        """The conditions under which the statement jumps away; a loop inside keeps its own continue and break."""
        found: list[Condition] = []
        for leaves, node in _jumps(statement, own_loop=in_loop):
            outer: ast.AST | None = node
            inner: ast.AST = node
            while outer is not None and outer is not statement:
                inner, outer = outer, self.parents.get(outer)
                made = self._guard(file, outer, inner) if outer is not None else None
                if made is not None and not made.is_loop:
                    found.append(replace(made, leaves=leaves, branch=leaves))
                    break
        return found


def _end_of(node: ast.AST, branch: str) -> int:
    block = getattr(node, branch, None)
    last = block[-1] if isinstance(block, list) and block else node
    return int(getattr(last, "end_lineno", 0) or 0)


def _blocks(node: ast.AST | None) -> Iterator[list[ast.AST]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _own_expressions(statement: ast.AST) -> Iterator[ast.AST]:
    """Expressions of a simple statement, or of the head of a compound one."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr | ast.withitem):
            yield from ast.walk(child)


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
        and last_name(node.value.func) in ENDS_PROCESS
    ):
        yield "raise", node
    elif not isinstance(node, Function | ast.ClassDef | ast.Lambda):
        inner = own_loop and not isinstance(node, Loop)
        for child in ast.iter_child_nodes(node):
            yield from _jumps(child, own_loop=inner)
