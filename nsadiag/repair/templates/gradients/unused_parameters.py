"""DDP is told to look for parameters that a forward does not use."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of

SETTING = "find_unused_parameters"


def propose(module: Module) -> Iterator[Proposal]:
    """At each wrapping in the module."""
    names = {"DistributedDataParallel"} | {
        alias.asname
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == "DistributedDataParallel" and alias.asname
    }
    for call in [n for n in ast.walk(module.tree) if isinstance(n, ast.Call) and name_of(n) in names]:
        given = next((k for k in call.keywords if k.arg == SETTING), None)
        if given is None:
            whole = module.source(call)
            text = module.replaced(call, f"{whole[:-1].rstrip().removesuffix(',')}, {SETTING}=True)")
        else:
            text = module.replaced(given.value, "True")
        yield Proposal(what=f"{SETTING} in line {call.lineno}", text=text, line=call.lineno)


EXAMPLE = Example(
    line=4,
    before="""from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build())
model(batch).sum().backward()
""",
    after="""from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(build(), find_unused_parameters=True)
model(batch).sum().backward()
""",
)
TEMPLATE = Template(
    name="find unused parameters", propose=propose, example=EXAMPLE,
    classes=frozenset({"ddp_unused_parameter", "divergent_module_execution"}),
)  # fmt: skip
