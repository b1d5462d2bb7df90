"""Possible cuts in a program, each with everything that depends on it, so that the rest still has its names."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from nsadiag.experiments.rewriting.printing import DEFINES
from nsadiag.experiments.rewriting.program import BODIES, SCOPES, Edit, Edits, Program

Key = tuple[
    int, str
]  # scope (the number of its function, 0: the module; -1: an attribute of whatever object), name
CutId = tuple[str, int, str, frozenset[int]]
COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try)
MODULE, ATTRIBUTE = 0, -1


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One thing to try. `names` says what it is, for priors and for remembering; `gone` are statements' numbers."""

    kind: str
    number: int
    detail: str
    edits: Edits
    gone: frozenset[int]

    @property
    def id(self) -> CutId:
        """The same cut takes other things along once the program has changed: then it is another one."""
        return self.kind, self.number, self.detail, frozenset(self.edits)


@dataclass(kw_only=True)
class Links:
    """The names bound and read by each statement."""

    program: Program
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    binders: dict[Key, set[int]] = field(default_factory=lambda: defaultdict(set))
    uses: dict[Key, list[ast.AST]] = field(default_factory=lambda: defaultdict(list))
    bound_by: dict[int, set[Key]] = field(default_factory=lambda: defaultdict(set))
    used_by: dict[int, set[Key]] = field(default_factory=lambda: defaultdict(set))
    statements: dict[int, ast.stmt] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Links:
        links = cls(program=program)
        for node in ast.walk(program.tree):
            for child in ast.iter_child_nodes(node):
                links.parents[child] = node
            if isinstance(node, ast.stmt) and number(node) >= 0:
                links.statements[number(node)] = node
        local = _locals(program.tree)
        for node in ast.walk(program.tree):
            links._note(node, local)
        return links

    def _note(self, node: ast.AST, local: dict[int, set[str]]) -> None:
        if isinstance(node, ast.Name):
            key = self._key(node, node.id, local)
            if isinstance(node.ctx, ast.Store) and isinstance(
                self.parents.get(self.statement(node)), ast.ClassDef
            ):
                key = ATTRIBUTE, node.id
            if isinstance(node.ctx, ast.Store):
                self._bind(key, node)
            else:
                self._use(key, node)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Store):
                self._bind((ATTRIBUTE, node.attr), node)
            else:
                self._use((ATTRIBUTE, node.attr), node)
        elif isinstance(node, DEFINES):
            inside = isinstance(self.parents.get(node), ast.ClassDef)
            self._bind(
                (ATTRIBUTE, node.name) if inside else self._key(node, node.name, local, outside=True), node
            )
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                self._bind(self._key(node, alias.asname or alias.name.split(".")[0], local), node)

    def _bind(self, key: Key, node: ast.AST) -> None:
        statement = number(self.statement(node))
        self.binders[key].add(statement)
        self.bound_by[statement].add(key)

    def _use(self, key: Key, node: ast.AST) -> None:
        self.uses[key].append(node)
        self.used_by[number(self.statement(node))].add(key)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that the node is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def inside(self, node: ast.AST) -> Iterator[ast.AST]:
        """The ancestors of the node, from the inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def _key(self, node: ast.AST, name: str, local: dict[int, set[str]], *, outside: bool = False) -> Key:
        scopes = [n for n in self.inside(node) if isinstance(n, SCOPES)]
        for scope in scopes:
            if name in local[number(scope)]:
                return number(scope), name
        return MODULE, name

    def nested(self, statement: ast.AST) -> set[int]:
        """The statement and all statements in it."""
        return {number(n) for n in ast.walk(statement) if isinstance(n, ast.stmt)}


def number(node: ast.AST) -> int:
    return getattr(node, "number", -1)


def _locals(tree: ast.AST) -> dict[int, set[str]]:
    """By function: names that belong to it."""
    found: dict[int, set[str]] = {}
    for scope in ast.walk(tree):
        if not isinstance(scope, SCOPES):
            continue
        names = {a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)}
        foreign: set[str] = set()
        for node in _own(scope):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, DEFINES):
                names.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names |= {a.asname or a.name.split(".")[0] for a in node.names}
            elif isinstance(node, ast.Global | ast.Nonlocal):
                foreign |= set(node.names)
        found[number(scope)] = names - foreign
    return found


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function, without those of functions in it."""
    body = scope.body if isinstance(scope.body, list) else [scope.body]  # type: ignore[attr-defined]
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (*SCOPES, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(node))


# -- what goes together ---------------------------------------------------------------------------


class Closure:
    """Grows one edit by what would be left without a name."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.edits: dict[int, set[Edit]] = defaultdict(set)
        self.gone: set[int] = set()
        self.possible = True
        self._dead: set[Key] = set()

    def delete(self, statement: ast.stmt) -> None:
        if number(statement) in self.gone:
            return
        nested = self.links.nested(statement)
        if nested & self.links.program.kept:
            self.possible = False
            return
        self.edits[number(statement)].add(("delete",))
        self._lost(nested)

    def unwrap(self, statement: ast.stmt, part: str) -> None:
        """Only what stands in one part of a compound statement stays."""
        rest = self.links.nested(statement)
        for inner in getattr(statement, part):
            rest -= self.links.nested(inner)
        if rest & self.links.program.kept:
            self.possible = False
            return
        self.edits[number(statement)].add(("unwrap", part))
        self._lost(rest)

    def change(self, node: ast.AST, edit: Edit) -> None:
        self.edits[number(node)].add(edit)

    def _lost(self, statements: set[int]) -> None:
        self.gone |= statements
        keys = {key for s in statements for key in self.links.bound_by.get(s, ())}
        for key in keys:
            if key not in self._dead and self.links.binders[key] <= self.gone:
                self.kill(key)

    def kill(self, key: Key) -> None:
        """Nothing binds the name any more: every use of it goes."""
        self._dead.add(key)
        for use in self.links.uses.get(key, ()):
            if self.possible and number(self.links.statement(use)) not in self.gone:
                self.weaken(use)

    def weaken(self, use: ast.AST) -> None:
        """Takes out as little around the use as may be taken out; the whole statement where nothing less can go."""
        node = use
        for outer in self.links.inside(use):
            if isinstance(outer, ast.stmt):
                self._give_up(outer, node)
                return
            if (
                isinstance(outer, ast.keyword)
                and outer.arg
                and isinstance(self.links.parents[outer], ast.Call)
            ):
                self.change(self.links.parents[outer], ("argument", outer.arg))
                return
            if isinstance(outer, ast.IfExp) and node is outer.test:
                self.change(outer, ("be", number(outer.orelse)))
                return
            if isinstance(outer, ast.BoolOp) and len(outer.values) == 2:
                other = outer.values[1 - outer.values.index(node)]  # type: ignore[arg-type]
                self.change(outer, ("be", number(other)))
                return
            if isinstance(outer, ast.Call) and node is outer.func and self._passes_on(outer):
                self.change(outer, ("be", number(outer.args[0])))
                return
            if _moves(outer) and node in outer.args:  # type: ignore[attr-defined]
                self.change(outer, ("be", number(outer.func.value)))  # type: ignore[attr-defined]
                return
            node = outer

    def _passes_on(self, call: ast.Call) -> bool:
        """`self.norm(x)` without the norm is x; a call whose value nobody uses is none at all."""
        is_module = isinstance(call.func, ast.Attribute)
        return is_module and bool(call.args) and not isinstance(self.links.parents[call], ast.Expr)

    def _give_up(self, statement: ast.stmt, part: ast.AST) -> None:
        kept = self.links.program.kept
        if (
            isinstance(statement, COMPOUND)
            and self.links.nested(statement) & kept
            and number(statement) not in kept
        ):
            for name in BODIES:
                inside = {n for s in getattr(statement, name, []) for n in self.links.nested(s)}
                if inside & kept:
                    self.unwrap(statement, name)
                    return
        self.delete(statement)

    def cut(self, kind: str, target: ast.AST, detail: str = "") -> Cut | None:
        if not self.possible:
            return None
        edits = {n: frozenset(e) for n, e in self.edits.items()}
        return Cut(kind=kind, number=number(target), detail=detail, edits=edits, gone=frozenset(self.gone))


def _moves(node: ast.AST) -> bool:
    """`x.to(device)` without the device is x."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("to", "type", "view_as")
        and len(node.args) == 1
        and not node.keywords
    )


def cuts(program: Program) -> Iterator[Cut]:
    """Everything that may be tried on the program as it is."""
    links = Links.of(program)
    for statement in links.statements.values():
        if not isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass | ast.Global | ast.Nonlocal):
            closure = Closure(links)
            closure.delete(statement)
            yield from made(closure.cut("delete", statement))
        if isinstance(statement, COMPOUND):
            for part in BODIES:
                if getattr(statement, part, None):
                    closure = Closure(links)
                    closure.unwrap(statement, part)
                    yield from made(closure.cut("unwrap", statement, part))
        if isinstance(statement, ast.FunctionDef):
            yield from _parameters(links, statement)


def made(cut: Cut | None) -> Iterator[Cut]:
    if cut is not None:
        yield cut


def _parameters(links: Links, function: ast.FunctionDef) -> Iterator[Cut]:
    """Without one of its parameters, here and at every call."""
    given = function.args
    is_method = isinstance(links.parents.get(function), ast.ClassDef)
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    first = 1 if is_method and not static else 0
    for place, argument in enumerate([*given.args, *given.kwonlyargs]):
        if place < first:
            continue
        closure = Closure(links)
        closure.change(function, ("parameter", argument.arg))
        for call in _calls_of(links, function, is_method=is_method):
            if place < len(given.args) and place - first < len(call.args):
                closure.change(call, ("argument", place - first))
            elif any(k.arg == argument.arg for k in call.keywords):
                closure.change(call, ("argument", argument.arg))
        key = (number(function), argument.arg)
        if not links.binders.get(key):
            closure.kill(key)
        yield from made(closure.cut("parameter", function, argument.arg))


def _calls_of(links: Links, function: ast.FunctionDef, *, is_method: bool) -> Iterator[ast.Call]:
    name = function.name
    if name == "__init__":
        owner = links.parents[function]
        name, is_method = owner.name, False  # type: ignore[attr-defined]
    for node in ast.walk(links.program.tree):
        if isinstance(node, ast.Call):
            called = node.func
            if (isinstance(called, ast.Name) and called.id == name and not is_method) or (
                isinstance(called, ast.Attribute) and called.attr == name and is_method
            ):
                yield node
