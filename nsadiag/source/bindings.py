"""Bindings: the expressions that each of the user's names may get, over all files."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nsadiag.source.model import Function, Scope, SourceFile, given_to, last_name, name_of, returned_by

Key = tuple[str, str, str]

GROWS = frozenset(
    {"append", "extend", "add", "insert", "register", "update", "add_callback", "register_callback"}
)


@dataclass(frozen=True)
class Binding:
    """A name gets what an expression gives; `by_flow`: the expression only decides whether."""

    key: Key
    value: ast.expr
    scope: Scope
    by_flow: bool = False
    owner: str = ""  # of an attribute: the name of whose it is


def _first_name(node: ast.expr) -> str:
    """`a` of `a.b.c`; "" where it begins with something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


class Counter(ast.expr):
    """The number that `enumerate` counts with."""


def is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return number and not isinstance(node.value, bool)  # type: ignore[attr-defined]


class Bindings:
    """The bindings of all the user's files, its functions, classes and calls."""

    def __init__(self, files: Mapping[str, SourceFile]) -> None:
        self.bindings: dict[Key, list[Binding]] = defaultdict(list)
        self.functions: dict[str, list[tuple[Scope, Function]]] = defaultdict(list)
        self.calls: dict[str, list[tuple[Scope, ast.Call]]] = defaultdict(list)
        # Conditions under which a name gets another value: it is the same on all ranks only if these are.
        self.under: dict[Key, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        # Functions that somebody else is given to call: handlers, callbacks.
        self.handed_over: set[str] = set()
        self.classes: dict[str, tuple[Scope, ast.ClassDef]] = {}
        # Names that a file has from a library, which is whatever is in none of the user's files.
        self.of_library: set[tuple[str, str]] = set()
        self.own_modules = {part for file in files for part in (*Path(file).parts, Path(file).stem)}
        for path, file in files.items():
            _Collector(self, path).visit(file.tree)
        self._bind_parameters()

    def bind(
        self, key: Key, value: ast.expr, scope: Scope, *, by_flow: bool = False, owner: str = ""
    ) -> None:
        self.bindings[key].append(Binding(key, value, scope, by_flow, owner))

    @cached_property
    def returns(self) -> dict[str, list[tuple[Scope, ast.expr]]]:
        """By a function's name, what it returns."""
        found: dict[str, list[tuple[Scope, ast.expr]]] = {}
        for name, functions in self.functions.items():
            for scope, function in functions:
                found.setdefault(name, []).extend((scope, value) for value in returned_by(function))
        return found

    def calls_of(self, name: str) -> list[tuple[Scope, ast.Call]]:
        """Calls that may be of the user's function of that name: `torch.save()` is none of a `save` of one's own."""
        return [
            (scope, call)
            for scope, call in self.calls.get(name, ())
            if (scope.file, _first_name(call.func)) not in self.of_library
        ]

    def _bind_parameters(self) -> None:
        for name in self.calls:
            calls = self.calls_of(name)
            targets = list(self.functions.get(name, ()))
            if name in self.classes:
                scope, _ = self.classes[name]
                inside = f"{scope.path}.{name}".strip(".")
                targets += [
                    f
                    for f in self.functions.get("__init__", ())
                    if f[0] == (scope.file, f"{inside}.__init__")
                ]
                # A dataclass has no __init__ to be seen: its fields are the attributes.
                for caller, call in calls if not targets else ():
                    for keyword in call.keywords:
                        if keyword.arg:
                            self.bind(("", "attr", keyword.arg), keyword.value, caller)
            for scope, function in targets:
                for caller, call in calls:
                    self._bind_call(scope, function, caller, call)

    def _bind_call(self, scope: Scope, function: Function, caller: Scope, call: ast.Call) -> None:
        names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if names and names[0] in ("self", "cls"):
            names = names[1:]
        for name, value in zip(names, call.args, strict=False):
            self.bind((*scope, name), value, caller)
        for keyword in call.keywords:
            if keyword.arg:
                self.bind((*scope, keyword.arg), keyword.value, caller)

    def bound_to(self, node: ast.expr, scope: Scope) -> list[Binding]:
        """All that a name or attribute may get."""
        return [b for key in self.keys_of(node, scope) for b in self.bindings.get(key, ())]

    def values_of(self, node: ast.expr, scope: Scope) -> list[Binding]:
        """The same without conditions that only decide whether it does."""
        return [b for b in self.bound_to(node, scope) if not b.by_flow]

    def keys_of(self, node: ast.expr, scope: Scope) -> Iterator[Key]:
        """Keys of the bindings that a name or attribute may mean, innermost scope first."""
        if isinstance(node, ast.Attribute):
            yield ("", "attr", node.attr)
        elif isinstance(node, ast.Name):
            file, path = scope
            while True:
                if (file, path, node.id) in self.bindings:
                    yield (file, path, node.id)
                    return
                if not path:
                    return
                path = path.rpartition(".")[0]


class _Collector(ast.NodeVisitor):
    """Walks one file and tells the bindings."""

    def __init__(self, known: Bindings, file: str) -> None:
        self.known = known
        self.file = file
        self.path: list[str] = []
        self.tests: list[ast.expr] = []  # the conditions around

    @property
    def scope(self) -> Scope:
        return Scope(self.file, ".".join(self.path))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            alike = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            for number, each in enumerate(target.elts):
                self._assign(each, value.elts[number] if alike else value)  # type: ignore[attr-defined]
            return
        key = self._key(target)
        if key is None:
            return
        owner = last_name(target.value) if isinstance(target, ast.Attribute) else ""
        self.known.bind(key, value, self.scope, owner=owner)
        self.known.under[key] += [(test, self.scope) for test in self.tests]
        # What a branch merely changes is data; what it switches on or makes says who one is.
        made = isinstance(value, ast.List) or (
            isinstance(value, ast.Call) and last_name(value.func)[:1].isupper()
        )
        switched = isinstance(value, ast.Constant) and not is_number(value)
        for test in self.tests if made or switched else ():
            self.known.bind(key, test, self.scope, by_flow=True, owner=owner)

    def _key(self, target: ast.expr) -> Key | None:
        if isinstance(target, ast.Name):
            return (*self.scope, target.id)
        return ("", "attr", target.attr) if isinstance(target, ast.Attribute) else None

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._assign(node.target, node.value)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        counts = isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "enumerate"
        if counts and isinstance(node.target, ast.Tuple) and len(node.target.elts) == 2:
            self._assign(node.target.elts[0], Counter())
            self._assign(node.target.elts[1], node.iter)
        else:
            self._assign(node.target, node.iter)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self.tests.append(node.test)
        for each in (*node.body, *node.orelse):
            self.visit(each)
        self.tests.pop()

    def visit_Import(self, node: ast.Import) -> None:
        self._import(node.names, [alias.name for alias in node.names])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and not node.level:
            self._import(node.names, [node.module] * len(node.names))

    def _import(self, names: list[ast.alias], modules: list[str]) -> None:
        for alias, module in zip(names, modules, strict=True):
            if module.partition(".")[0] not in self.known.own_modules:
                self.known.of_library.add((self.file, alias.asname or alias.name.partition(".")[0]))

    def visit_Expr(self, node: ast.Expr) -> None:
        # `log.setLevel(DEBUG if rank == 0 else WARNING)` makes the object depend on the rank.
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            key = self._key(node.value.func.value)
            for given in given_to(node.value) if key else ():
                if isinstance(given, ast.IfExp):
                    self.known.bind(key, given, self.scope, by_flow=True)  # type: ignore[arg-type]
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = name_of(node)
        if name:
            self.known.calls[name].append((self.scope, node))
        self.known.handed_over |= {last_name(each) for each in given_to(node)} - {""}
        # `if rank == 0: callbacks.append(...)` makes the list depend on the rank.
        if isinstance(node.func, ast.Attribute) and name in GROWS and self.tests:
            key = self._key(node.func.value)
            for test in self.tests if key else ():
                self.known.bind(key, test, self.scope, by_flow=True)  # type: ignore[arg-type]
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        function = self.path[-1] if self.path else ""
        if node.value is not None:
            self.known.bind(("", "func", function), node.value, self.scope)
            # Numbers that only differ by rank are data here as well.
            number = isinstance(node.value, ast.Constant) and isinstance(node.value.value, float)
            for test in self.tests if isinstance(node.value, ast.Constant) and not number else ():
                self.known.bind(("", "func", function), test, self.scope, by_flow=True)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: Function) -> None:
        tests, self.tests = self.tests, []
        self.path.append(node.name)
        self.known.functions[node.name].append((self.scope, node))
        self.generic_visit(node)
        self.path.pop()
        self.tests = tests

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.known.classes[node.name] = (self.scope, node)
        self.path.append(node.name)
        self.generic_visit(node)
        self.path.pop()
