"""A call that communicates leaves the branch of one rank: all ranks make it, and what stays in the branch is that rank's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module


def propose(module: Module) -> Iterator[Proposal]:
    """At branches on the rank around the lines; the statement that holds a line goes first, with what it needs of the branch."""
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        if module.provenance(node.test) != "rank":
            continue
        marked = [
            s for s in node.body if any(s.lineno <= line <= (s.end_lineno or 0) for line in module.lines)
        ]
        for statement in [*marked, *(s for s in node.body if s not in marked)]:
            if not any(isinstance(n, ast.Call) for n in ast.walk(statement)) or _jumps(statement):
                continue
            moved = _with_needs(statement, node.body)
            what = f"all ranks run line {statement.lineno}, out of the branch in line {node.lineno}"
            yield Proposal(what=what, text=module.moved_before(moved, node))


def _jumps(statement: ast.stmt) -> bool:
    """Whether it leaves a loop or function that it would no longer leave under the condition."""
    return any(isinstance(n, ast.Return | ast.Break | ast.Continue | ast.Raise) for n in ast.walk(statement))


def _with_needs(statement: ast.stmt, body: list[ast.stmt]) -> list[ast.stmt]:
    """The statement behind those before it in the branch that bind what it reads."""
    needed, taken = _names(statement, ast.Load), [statement]
    for earlier in reversed(body[: body.index(statement)]):
        if _names(earlier, ast.Store) & needed:
            taken.insert(0, earlier)
            needed |= _names(earlier, ast.Load)
    return taken


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


EXAMPLE = Example(
    line=7,
    before="""import torch.distributed as dist


def log(rank, loss):
    if rank == 0:
        total = loss.clone()
        dist.all_reduce(total)
        print(total)
""",
    after="""import torch.distributed as dist


def log(rank, loss):
    total = loss.clone()
    dist.all_reduce(total)
    if rank == 0:
        print(total)
""",
)
TEMPLATE = Template(name="hoist", propose=propose, example=EXAMPLE)
