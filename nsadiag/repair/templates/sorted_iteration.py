"""A loop over a set goes in one order on all ranks: Python salts the hashes of strings in each process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of

SETS = ("set", "frozenset", "union", "intersection", "difference", "symmetric_difference")


def propose(module: Module) -> Iterator[Proposal]:
    """At loops and comprehensions over what is a set by the text."""
    sets = _names_of_sets(module.tree)
    for node in module.around(ast.For, ast.ListComp, ast.GeneratorExp, ast.DictComp):
        items = node.iter if isinstance(node, ast.For) else node.generators[0].iter  # type: ignore[attr-defined]
        if _is_set(items) or _last(items) in sets:
            text = module.replaced(items, f"sorted({module.source(items)})")
            yield Proposal(what=f"one order of the set in line {items.lineno}", text=text)


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
TEMPLATE = Template(name="sorted iteration", propose=propose, example=EXAMPLE)
