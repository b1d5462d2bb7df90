"""Collections that a loop iterates over: what is put into them on some ranks only, and which of it a call path is in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.evidence.records import Place
from nsadiag.source.bindings import GROWS, Key
from nsadiag.source.control import DEEPEST, Condition, Program
from nsadiag.source.model import CallPath, Scope, last_name, names_in

# What these give goes over what they are given.
PASSING = frozenset({"list", "tuple", "set", "reversed", "sorted", "enumerate", "iter"})
OF_MAPPING = frozenset({"items", "values", "keys", "copy"})


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """Something is put into the collection, behind a condition on the rank or on all ranks."""

    at: Place
    guard: Condition | None  # the condition on the rank
    items: frozenset[str]  # the user's classes and functions, by name


def insertions(program: Program, loop: Condition) -> list[Insertion]:
    """All that the source puts into what a `for` goes over."""
    statement = program.for_at(loop)
    if statement is None:
        return []
    keys: set[Key] = set()
    plain: list[tuple[ast.expr, Scope]] = []
    _collect(program, statement.iter, program.scope_of(loop.file, loop.line), keys, plain)
    return [
        each for value, scope in (*plain, *_added(program, keys)) for each in _split(program, value, scope)
    ]


def runs_its_items(program: Program, loop: Condition, inside: CallPath) -> bool:
    """Whether what the loop hands out is itself called where the path leaves the loop's body: a task, and not a batch."""
    statement = program.for_at(loop)
    depth = _depth_in(loop, inside)
    if statement is None or depth + 1 >= len(inside):
        return False
    at = inside[depth]
    names = {program.scope_of(p.file, p.line).function for p in inside[depth + 1 :]}
    out = names_in(statement.target)
    out |= {
        t.id
        for n in ast.walk(statement)
        if isinstance(n, ast.Assign) and _leads_by(n.value, out, names)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    return any(_leads_by(call.func, out, names) for call in program.call_nodes_on(at.file, at.line))


def _leads_by(called: ast.expr, out: set[str], names: set[str]) -> bool:
    """Whether one of `out` decides whose code a call runs: `x()`, `x.step()`, `tasks[x]()`, `getattr(a, x)()`; not `x.to()`.

    `names`: of the functions that it led to.
    """
    if isinstance(called, ast.Name):
        return called.id in out
    if isinstance(called, ast.Attribute):
        return called.attr in names and bool(names_in(called.value) & out)
    if isinstance(called, ast.Subscript):
        return bool(names_in(called) & out)
    is_getattr = isinstance(called, ast.Call) and last_name(called.func) == "getattr"
    return is_getattr and any(names_in(a) & out for a in called.args)  # type: ignore[attr-defined]


def _depth_in(loop: Condition, path: CallPath) -> int:
    """The innermost frame of the path that is in the loop itself; its length where there is none."""
    return next((n for n in range(len(path) - 1, -1, -1) if loop.holds(path[n])), len(path))


def insertions_of(
    found: list[Insertion], program: Program, loop: Condition, inside: CallPath
) -> list[Insertion]:
    """The insertions whose item the path is in."""
    depth = _depth_in(loop, inside)
    beyond = {
        part for p in inside[depth + 1 :] for part in program.scope_of(p.file, p.line).path.split(".") if part
    }
    own = [f for f in found if f.items & beyond]
    return own or [f for f in found if _with_bases(program, f.items) & beyond]


def _collect(
    program: Program,
    node: ast.expr,
    scope: Scope,
    keys: set[Key],
    plain: list[tuple[ast.expr, Scope]],
    depth: int = 0,
) -> None:
    """Adds the names that stand for the collection or for a part of it, and the values that no name has."""
    if depth > DEEPEST:
        return
    more: list[tuple[ast.expr, Scope]] = []
    if isinstance(node, ast.Name | ast.Attribute):
        for key in program.dataflow.keys_of(node, scope):
            if key not in keys and key in program.dataflow.bindings:
                keys.add(key)
                more += [(b.value, b.scope) for b in program.dataflow.bindings[key] if not b.by_flow]
    elif isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in OF_MAPPING and isinstance(node.func, ast.Attribute):
            more = [(node.func.value, scope)]
        elif name in PASSING:
            more = [(each, scope) for each in node.args[:1]]
        else:
            more = _given_back(program, name)
            plain += more
    else:
        plain += [(node, scope)] if not depth else []
        more = [(each, scope) for each in _parts(node)]
    for value, where in more:
        _collect(program, value, where, keys, plain, depth + 1)


def _given_back(program: Program, name: str) -> list[tuple[ast.expr, Scope]]:
    """Values that a function of the user's returns, or yields."""
    handed = [
        (n.value, scope)
        for scope, function in program.dataflow.functions.get(name, ())
        for n in ast.walk(function)
        if isinstance(n, ast.Yield | ast.YieldFrom) and n.value is not None
    ]
    return [*handed, *((value, scope) for scope, value in program.dataflow.returns.get(name, ()))]


def _parts(node: ast.expr) -> list[ast.expr]:
    """Parts of an expression that puts several collections together."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Starred | ast.Subscript):
        return [node.value]
    return [e for e in node.elts if isinstance(e, ast.Starred)] if isinstance(node, ast.List | ast.Tuple | ast.Set) else []  # fmt: skip


def _added(program: Program, keys: set[Key]) -> Iterator[tuple[ast.expr, Scope]]:
    """Whatever those names are set to, grow by, or have put under a key."""
    dataflow = program.dataflow
    for key in keys:
        yield from ((b.value, b.scope) for b in dataflow.bindings[key] if not b.by_flow)
    for name in GROWS:
        for scope, call in dataflow.calls.get(name, ()):
            if isinstance(call.func, ast.Attribute) and keys & {*dataflow.keys_of(call.func.value, scope)}:
                for given in call.args:
                    yield from _given(program, given, scope)
    for scope, target, value in program.put_under_keys:
        if keys & {*dataflow.keys_of(target.value, scope)}:
            yield from _given(program, value, scope)


def _given(program: Program, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """The value; of a function's parameter what each call of it gives."""
    values = program.dataflow.values_of(node, scope) if isinstance(node, ast.Name) else []
    calls = [b for b in values if b.scope != scope]
    if calls:
        yield from ((b.value, b.scope) for b in calls)
    else:
        yield node, scope


def _split(program: Program, value: ast.expr, scope: Scope) -> Iterator[Insertion]:
    """One for each part of the value that has a condition of its own."""
    if isinstance(value, ast.IfExp) and program.dataflow.of(value.test, scope) == "rank":
        for branch, arm in (("body", value.body), ("orelse", value.orelse)):
            if not isinstance(arm, ast.List | ast.Tuple) or arm.elts:
                yield _insertion(program, arm, scope, program.choice(value, scope, branch))
        return
    parts = [p for p in _parts(value) if not isinstance(value, ast.Subscript)]
    for part in parts:
        yield from _split(program, part, scope)
    elements = isinstance(value, ast.List | ast.Tuple | ast.Set) and any(e not in parts for e in value.elts)
    # A name is told where it gets its value.
    if elements or not (parts or isinstance(value, ast.Name | ast.Attribute | ast.List | ast.Tuple)):
        yield _insertion(program, value, scope, program.on_rank(scope, value.lineno))
    elif isinstance(value, ast.Name | ast.Attribute) and (guard := program.on_rank(scope, value.lineno)):
        yield _insertion(program, value, scope, guard)


def _insertion(program: Program, value: ast.expr, scope: Scope, guard: Condition | None) -> Insertion:
    own = {*program.dataflow.classes, *program.dataflow.functions}
    names = [_named(program, each, scope) & own for each in _elements(value)]
    return Insertion(at=scope.place(value.lineno), guard=guard, items=frozenset().union(*names))


def _elements(value: ast.expr) -> list[ast.expr]:
    if isinstance(value, ast.List | ast.Tuple | ast.Set):
        return [e for e in value.elts if not isinstance(e, ast.Starred)]
    return value.values if isinstance(value, ast.Dict) else [value]


def _named(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> set[str]:
    """The classes or functions that the value is made of."""
    if depth > DEEPEST:
        return set()
    inner: list[ast.expr] = []
    if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
        inner = _elements(node)
    elif isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in ("partial", *PASSING):
            inner = node.args[:1]
        else:
            made = program.dataflow.returns.get(name, ()) if name not in program.dataflow.classes else ()
            return {name, *(n for where, v in made for n in _named(program, v, where, depth + 1))} - {""}
    elif isinstance(node, ast.Attribute):
        return {node.attr}
    elif isinstance(node, ast.Name):
        bound = program.dataflow.values_of(node, scope)
        return {node.id, *(n for b in bound for n in _named(program, b.value, b.scope, depth + 1))}
    return {name for each in inner for name in _named(program, each, scope, depth + 1)}


def _with_bases(program: Program, names: frozenset[str]) -> set[str]:
    found, new = set(names), set(names)
    while new:
        known = (program.dataflow.classes.get(name) for name in new)
        new = {last_name(base) for pair in known if pair for base in pair[1].bases} - found - {""}
        found |= new
    return found
