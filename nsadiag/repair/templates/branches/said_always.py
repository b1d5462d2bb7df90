"""A message that is sent only where something has changed is sent always: its receiver waits for one each time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of

TRANSFERS = ("send", "isend", "recv", "irecv")


def propose(module: Module) -> Iterator[Proposal]:
    """At sends and receives in branches that do not depend on the rank."""
    for node in module.around(ast.If):
        assert isinstance(node, ast.If)
        if node.orelse or module.provenance(node.test) == "rank":
            continue
        for statement in node.body:
            if any(isinstance(n, ast.Call) and name_of(n) in TRANSFERS for n in ast.walk(statement)):
                what = (
                    f"line {statement.lineno} is run always, not only by the condition in line {node.lineno}"
                )
                text = module.moved_before([statement], node)
                yield Proposal(what=what, text=text, line=statement.lineno)
                break


EXAMPLE = Example(
    line=6,
    before="""import torch.distributed as dist


def tell(value, before):
    if value != before:
        dist.send(value, 1)
""",
    after="""import torch.distributed as dist


def tell(value, before):
    dist.send(value, 1)
    if value != before:
        pass
""",
)
TEMPLATE = Template(name="said always", propose=propose, example=EXAMPLE)
