"""A loop goes in one order on all ranks: sets, whose hashes Python salts in each process, and what each rank orders for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of

SETS = ("set", "frozenset", "union", "intersection", "difference", "symmetric_difference")
VIEWS = ("items", "keys")
LOOPS = (ast.For, ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)


def propose(module: Module) -> Iterator[Proposal]:
    """At loops and comprehensions: over sets, by keys of the rank's own, over mappings, and over anything at the lines."""
    sets = _names_of_sets(module.tree)
    loops = module.around(*LOOPS)
    for node in loops:
        items = _items(node)
        if _is_set(items) or _last(items) in sets:
            yield _sorted(module, items, "the set")
    yield from _without_keys(module)
    for node in loops:
        items = _items(node)
        if isinstance(items, ast.Call) and name_of(items) in VIEWS and not items.args:
            yield _sorted(module, items, "the mapping")
    for node in [n for n in loops if _items(n).lineno in module.lines]:
        items = _items(node)
        if isinstance(items, ast.Name | ast.Attribute):
            yield replace(_sorted(module, items, "what is gone through"), is_guess=True)


def _items(node: ast.AST) -> ast.expr:
    return node.iter if isinstance(node, ast.For) else node.generators[0].iter  # type: ignore[attr-defined]


def _sorted(module: Module, items: ast.expr, named: str) -> Proposal:
    text = module.replaced(items, f"sorted({module.source(items)})")
    return Proposal(what=f"one order of {named} in line {items.lineno}", text=text, line=items.lineno)


def _without_keys(module: Module) -> Iterator[Proposal]:
    for call in module.around(ast.Call):
        assert isinstance(call, ast.Call)
        keys = [k for k in call.keywords if k.arg == "key"]
        if name_of(call) not in ("sorted", "sort") or not keys:
            continue
        kept = ", ".join(module.source(n) for n in [*call.args, *(k for k in call.keywords if k not in keys)])
        text = module.replaced(call, f"{module.source(call.func)}({kept})")
        yield Proposal(what=f"sorted by itself in line {call.lineno}", text=text, line=call.lineno)


def _names_of_sets(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_set(node.value):
            found |= {_last(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign | ast.arg) and _is_annotated(node.annotation):
            found.add(node.arg if isinstance(node, ast.arg) else _last(node.target))
    return found - {""}


def _is_annotated(annotation: ast.expr | None) -> bool:
    return annotation is not None and ast.unparse(annotation).startswith(("set", "frozenset"))


def _last(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_set(value: ast.expr) -> bool:
    return isinstance(value, ast.Set | ast.SetComp) or (
        isinstance(value, ast.Call) and name_of(value) in SETS
    )


EXAMPLE = Example(
    line=3,
    before="""def reduce_all(metrics: set[str], values):
    for name in metrics:
        reduce(values[name])
""",
    after="""def reduce_all(metrics: set[str], values):
    for name in sorted(metrics):
        reduce(values[name])
""",
)
TEMPLATE = Template(name="one order", propose=propose, example=EXAMPLE)
