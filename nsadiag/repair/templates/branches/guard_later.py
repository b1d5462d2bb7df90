"""A function that all but one rank leave at once is left by them after its calls that communicate."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module, first_line


def propose(module: Module) -> Iterator[Proposal]:
    """At guards on the rank above the lines: behind the statement that holds a line, then behind later ones."""
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        if not _is_guard(node) or module.provenance(node.test) != "rank":
            continue
        later = [s for s in module.body_of(node) if s.lineno > node.lineno]
        marked = [s for s in later if any(s.lineno <= line <= (s.end_lineno or 0) for line in module.lines)]
        for statement in [*marked[-1:], *(s for s in later[:-1] if s not in marked[-1:])]:
            what = f"ranks leave by line {node.lineno} after line {statement.end_lineno}"
            yield Proposal(what=what, text=_moved_behind(module, node, statement), line=node.lineno)


def _is_guard(node: ast.If) -> bool:
    leaves = len(node.body) == 1 and isinstance(node.body[0], ast.Return | ast.Continue)
    return leaves and not node.orelse


def _moved_behind(module: Module, guard: ast.If, statement: ast.stmt) -> str:
    first, last, end = first_line(guard), guard.end_lineno or 0, statement.end_lineno or 0
    rows = module.rows
    return "".join(rows[: first - 1] + rows[last:end] + rows[first - 1 : last] + rows[end:])


EXAMPLE = Example(
    line=7,
    before="""import torch


def export(rank, model):
    if rank != 0:
        return
    weights = gather(model)
    torch.save(weights, "model.pt")
""",
    after="""import torch


def export(rank, model):
    weights = gather(model)
    if rank != 0:
        return
    torch.save(weights, "model.pt")
""",
)
TEMPLATE = Template(name="guard later", propose=propose, example=EXAMPLE)
