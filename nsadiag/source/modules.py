"""The condition in a model's source on which a module of it runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from nsadiag.evidence.records import Place
from nsadiag.source.model import (
    Function,
    SourceFile,
    SourceModel,
    calls_in,
    last_name,
    name_of,
    names_in,
    place,
)


def branch_in(code: SourceModel, model: str, names: list[str], known: set[str]) -> Place | None:
    """The one condition behind which all these parameters of a model of that class are, in the `forward` of whichever module holds them.

    None if there is none, or several, or a parameter of `known` that took part is behind it as well.
    """
    source = _Classes(code.kept)
    paths = list(dict.fromkeys(tuple(name.split(".")) for name in names))
    first = _decided(source, model, paths[0], set(names), known)
    others = (_decided(source, model, path, set(names), known) for path in paths[1:])
    if first is None or any(at is not None and at != first for at in others):
        return None
    file, line, function, _ = first
    return place(file, line, function)


At = tuple[str, int, str, bool]  # file, line, method, whether it is the `else`


def _decided(
    source: _Classes, model: object, path: tuple[str, ...], unused: set[str], known: set[str]
) -> At | None:
    """From the model down to the parameter: the first condition around something of which no part ran."""
    one, depth = source.named(str(model)), 0
    while one is not None and depth < len(path):
        element = len(path) > depth + 2 and one.is_container(path[depth])
        for length, of_element in ((depth + 1, False), *(((depth + 2, True),) if element else ())):
            prefix = ".".join(path[:length])
            below = {n for n in known if n == prefix or n.startswith(f"{prefix}.")}
            if below <= unused and (at := one.guard_of(path[depth], of_element=of_element)):
                return at
        one, depth = source.held_by(one, path[depth]), depth + 1 + element
    return None


class _Classes:
    """The user's classes by name."""

    def __init__(self, files: list[SourceFile]) -> None:
        self._found: dict[str, list[tuple[str, ast.ClassDef]]] = {}
        for file in files:
            for node in file.all(ast.ClassDef):
                self._found.setdefault(node.name, []).append((file.path, node))

    def named(self, name: str, depth: int = 0) -> _Class | None:
        """None where there are several of that name: nothing says which one it is."""
        found = self._found.get(name, [])
        if len(found) != 1 or depth > 4:
            return None
        file, node = found[0]
        bases = [b for base in node.bases if (b := self.named(last_name(base), depth + 1))]
        return _Class(file, node, bases)

    def held_by(self, one: _Class, attribute: str) -> _Class | None:
        """The class of what is kept under that name, or of the elements of a container that is."""
        called = {name_of(call) for value in one.values_of(attribute) for call in calls_in(value)}
        own = called & set(self._found)
        return self.named(own.pop()) if len(own) == 1 else None


class _Class:
    """One class with what it inherits from others of the user's."""

    def __init__(self, file: str, node: ast.ClassDef, bases: list[_Class]) -> None:
        self._methods: dict[str, tuple[str, Function]] = {}
        for base in reversed(bases):
            self._methods |= base._methods
        self._methods |= {n.name: (file, n) for n in node.body if isinstance(n, Function)}

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        nodes = (node for _, method in self._methods.values() for node in ast.walk(method))
        return {child: node for node in nodes for child in ast.iter_child_nodes(node)}

    def values_of(self, attribute: str) -> Iterator[ast.expr]:
        """All values that are assigned to `self.<attribute>`."""
        for _, method in self._methods.values():
            for node in ast.walk(method):
                targets = node.targets if isinstance(node, ast.Assign) else []
                if any(_is_own(target, attribute) for target in targets):
                    yield node.value  # type: ignore[attr-defined]

    def is_container(self, attribute: str) -> bool:
        """Whether its elements have numbers or names of their own."""
        kinds = ("ModuleList", "ModuleDict", "Sequential")
        return any(isinstance(v, ast.Call) and name_of(v) in kinds for v in self.values_of(attribute))

    def guard_of(self, attribute: str, *, of_element: bool) -> At | None:
        """The one condition behind which `forward` runs it; None if it also runs it without, or behind another."""
        found = list(self._guards("forward", attribute, of_element, frozenset()))
        return found[0] if found and len(set(found)) == 1 else None

    def _guards(
        self, method: str, attribute: str, of_element: bool, seen: frozenset[str]
    ) -> Iterator[At | None]:
        """One for each place where the method, or another that it calls, runs what is kept under that name."""
        if method not in self._methods or method in seen:
            return
        file, function = self._methods[method]
        for node in ast.walk(function):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
                continue
            parent = self._parents.get(node)
            if _is_own(node, attribute):
                for use in self._elements(node) if of_element else [node]:
                    yield from self._told(file, function, use, attribute)
            elif _is_own(node, node.attr) and isinstance(parent, ast.Call) and parent.func is node:
                for at in self._guards(node.attr, attribute, of_element, seen | {method}):
                    yield from self._told(file, function, node, attribute) if at is None else (at,)

    def _told(self, file: str, function: Function, node: ast.AST, attribute: str) -> Iterator[At | None]:
        """The condition around it; of what only stands in a condition nothing: that runs nothing."""
        inner, outer = node, self._parents.get(node)
        around: list[tuple[int, bool]] = []
        exits: list[tuple[int, bool]] = []
        while outer is not None and inner is not function:
            if isinstance(outer, ast.If | ast.IfExp | ast.While) and inner is outer.test:
                return
            if _decides(outer, inner) and not _holds_anyway(outer, inner, attribute):
                around.append((_line(outer), _is_else(outer, inner)))
            exits += [
                (n.lineno, False)
                for n in _before(outer, inner)
                if _leaves(n) and not _asks_for_it_alone(n.test, attribute)
            ]
            inner, outer = outer, self._parents.get(outer)
        told = around[:1] or exits
        yield (file, told[0][0], function.name, told[0][1]) if len(told) == 1 else None

    def _elements(self, node: ast.AST) -> Iterator[ast.AST]:
        """Uses of an element of the container: by its index, or as the variable of a loop over it."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.Subscript):
            yield parent
            return
        while parent is not None and not isinstance(parent, ast.For | ast.comprehension | Function):
            node, parent = parent, self._parents.get(parent)
        if isinstance(parent, Function) or parent is None or node is not parent.iter:
            return
        targets = names_in(parent.target)
        inside = self._parents[parent] if isinstance(parent, ast.comprehension) else parent
        for each in ast.walk(inside):
            called = isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
            if called and each.func.id in targets:  # type: ignore[attr-defined]
                yield each


def _decides(outer: ast.AST, inner: ast.AST) -> bool:
    """Whether `outer` has a condition on which it depends that `inner` is run."""
    if isinstance(outer, ast.BoolOp):
        return inner is not outer.values[0]
    if isinstance(outer, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        return inner is outer.elt and any(part.ifs for part in outer.generators)
    return isinstance(outer, ast.If | ast.IfExp | ast.match_case)


def _holds_anyway(outer: ast.AST, inner: ast.AST, attribute: str) -> bool:
    """Whether the condition is that the module is there, or that the model trains: so it is where DDP misses gradients."""
    if not isinstance(outer, ast.If | ast.IfExp):
        return False
    trains = ast.unparse(outer.test) == "self.training" and not _is_else(outer, inner)
    return trains or _asks_for_it_alone(outer.test, attribute)


def _asks_for_it_alone(test: ast.expr, attribute: str) -> bool:
    """`self.vision is not None`, `hasattr(self, "vision")`."""
    names = names_in(test) - {"self", "hasattr", "getattr"}
    attributes = {n.attr for n in ast.walk(test) if isinstance(n, ast.Attribute)}
    return not names and attributes <= {attribute} and attribute in ast.unparse(test)


def _is_else(outer: ast.AST, inner: ast.AST) -> bool:
    block = getattr(outer, "orelse", None)
    return inner in block if isinstance(block, list) else inner is block


def _line(node: ast.AST) -> int:
    return int(node.pattern.lineno if isinstance(node, ast.match_case) else getattr(node, "lineno", 0))


def _before(outer: ast.AST, inner: ast.AST) -> Iterator[ast.If]:
    """Conditions that stand before it in its block."""
    for name in ("body", "orelse"):
        block = getattr(outer, name, None)
        if isinstance(block, list) and inner in block:
            yield from (n for n in block[: block.index(inner)] if isinstance(n, ast.If))


def _leaves(node: ast.If) -> bool:
    return any(isinstance(block[-1], ast.Return | ast.Continue) for block in (node.body, node.orelse) if block)  # fmt: skip


def _is_own(node: ast.AST, attribute: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
