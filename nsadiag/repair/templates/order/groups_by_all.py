"""A process group that some ranks create is created by all of them, in one order."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of

NAME = "group_of_all"


def propose(module: Module) -> Iterator[Proposal]:
    """At calls of new_group under a condition, around the lines first."""
    if module.binds(NAME):
        return
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        for call in [n for s in node.body for n in ast.walk(s) if isinstance(n, ast.Call)]:
            if name_of(call) != "new_group":
                continue
            rows = module.replaced(call, NAME).splitlines(keepends=True)
            created = f"{' ' * node.col_offset}{NAME} = {module.source(call)}\n"
            rows.insert(node.lineno - 1, created)
            yield Proposal(
                what=f"all ranks create the group of line {call.lineno}", text="".join(rows), line=call.lineno
            )


EXAMPLE = Example(
    line=6,
    before="""import torch.distributed as dist


def monitor(rank, members):
    if rank in members:
        group = dist.new_group(members)
        return group
    return None
""",
    after="""import torch.distributed as dist


def monitor(rank, members):
    group_of_all = dist.new_group(members)
    if rank in members:
        group = group_of_all
        return group
    return None
""",
)
TEMPLATE = Template(name="groups created by all", propose=propose, example=EXAMPLE)
