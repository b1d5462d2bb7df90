"""Sends and receives are matched by their order alone: tags that ranks count for themselves are left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nsadiag.repair.templates.template import Example, Proposal, Template
from nsadiag.repair.text import Module
from nsadiag.source.model import name_of

TRANSFERS = ("send", "recv", "isend", "irecv", "P2POp")


def propose(module: Module) -> Iterator[Proposal]:
    """One proposal for the module, where any tag is given and is no constant."""
    calls = [n for n in ast.walk(module.tree) if isinstance(n, ast.Call) and name_of(n) in TRANSFERS]
    tagged = [(call, k) for call in calls for k in call.keywords if k.arg == "tag"]
    if not any(not isinstance(keyword.value, ast.Constant) for _, keyword in tagged):
        return
    edits = []
    for call, keyword in tagged:
        function = module.source(call.func)
        kept = [module.source(a) for a in call.args]
        kept += [module.source(k) for k in call.keywords if k is not keyword]
        edits.append((call, f"{function}({', '.join(kept)})"))
    line = min(call.lineno for call, _ in tagged)
    yield Proposal(what="sends and receives without tags", text=module.edited(*edits), line=line)


EXAMPLE = Example(
    line=5,
    before="""import torch.distributed as dist


def pass_on(border, right, left, count):
    sending = dist.isend(border, right, tag=count // 10)
    dist.recv(border, left, tag=count // 10)
    sending.wait()
""",
    after="""import torch.distributed as dist


def pass_on(border, right, left, count):
    sending = dist.isend(border, right)
    dist.recv(border, left)
    sending.wait()
""",
)
TEMPLATE = Template(name="tags left out", propose=propose, example=EXAMPLE)
