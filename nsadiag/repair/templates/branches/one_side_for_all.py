"""A choice by the rank gives all ranks one of its two sides."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module


def propose(module: Module) -> Iterator[Proposal]:
    """At conditional expressions on the rank, those at the lines first."""
    marked = module.at_lines(ast.IfExp)
    for node in dict.fromkeys([*marked, *module.around(ast.IfExp)]):
        assert isinstance(node, ast.IfExp)
        # Two numbers elsewhere are how much each rank has, which it may.
        if module.provenance(node.test) != "rank" or (node not in marked and not _is_nothing(node.orelse)):
            continue
        sides = (node.body, node.orelse) if _is_nothing(node.orelse) else (node.orelse, node.body)
        for side in sides:
            what = f"all ranks have `{module.source(side)[:60]}` in line {node.lineno}"
            yield Proposal(what=what, text=module.replaced(node, module.source(side)), line=node.lineno)


def _is_nothing(side: ast.expr) -> bool:
    """Whether that side is an empty list, None or the like: then the other one is what the code is about."""
    return not getattr(side, "value", True) or (isinstance(side, ast.List | ast.Tuple) and not side.elts)


EXAMPLE = Example(
    line=5,
    before="""import torch.distributed as dist


def train(rank, step):
    callbacks = [Monitor(every=5)] if rank == 0 else []
    for callback in callbacks:
        callback(step)
""",
    after="""import torch.distributed as dist


def train(rank, step):
    callbacks = [Monitor(every=5)]
    for callback in callbacks:
        callback(step)
""",
)
TEMPLATE = Template(name="one side for all", propose=propose, example=EXAMPLE)
