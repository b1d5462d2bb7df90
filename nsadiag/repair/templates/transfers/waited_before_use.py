"""Asynchronous work is waited for where it is begun."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module


def propose(module: Module) -> Iterator[Proposal]:
    """At calls with async_op=True, those at the lines first."""
    for call in dict.fromkeys([*module.at_lines(ast.Call), *module.around(ast.Call)]):
        assert isinstance(call, ast.Call)
        if not any(k.arg == "async_op" and getattr(k.value, "value", None) is True for k in call.keywords):
            continue
        parent = module.parents[call]
        if isinstance(parent, ast.Expr):
            text = module.replaced(call, f"{module.source(call)}.wait()")
        elif isinstance(parent, ast.Assign):
            name = module.source(parent.targets[0])
            text = module.edited((parent, module.indented(parent, module.source(parent), f"{name}.wait()")))
        elif isinstance(parent, ast.Call) and isinstance(module.parents[parent], ast.Expr):
            statement = module.statement_of(call)
            kept = module.source(statement).replace(module.source(call), "work")
            lines = (f"work = {module.source(call)}", "work.wait()", kept)
            text = module.edited((statement, module.indented(statement, *lines)))
        else:
            continue
        yield Proposal(what=f"the work of line {call.lineno} is waited for", text=text, line=call.lineno)


EXAMPLE = Example(
    line=5,
    before="""import torch.distributed as dist


def average(flat, world):
    dist.all_reduce(flat, async_op=True)
    return flat / world
""",
    after="""import torch.distributed as dist


def average(flat, world):
    dist.all_reduce(flat, async_op=True).wait()
    return flat / world
""",
)
TEMPLATE = Template(
    name="waited for before use", propose=propose, example=EXAMPLE,
    classes=frozenset({"async_work_not_waited", "silently_wrong"}),
)  # fmt: skip
